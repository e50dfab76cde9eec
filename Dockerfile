# collbench with torch and its NCCL; the driver comes from the host:
#   docker build -t collbench .
#   docker run --rm --gpus all --ipc=host -v "$PWD:/data" --user "$(id -u):$(id -g)" collbench pairs
# --gpus all: NVLink and P2P need every GPU in one container. --ipc=host: NCCL shares memory between ranks.
ARG BASE=debian:bookworm-slim

FROM ${BASE} AS build
RUN apt-get update && apt-get install -y --no-install-recommends g++ python3-dev python3-venv && rm -rf /var/lib/apt/lists/*
WORKDIR /source
COPY constraints.txt ./
# A layer of its own: torch with CUDA has gigabytes, and changes only with its pin.
RUN python3 -m venv /opt/collbench && /opt/collbench/bin/pip install --no-cache-dir --constraint constraints.txt \
    pip setuptools pybind11 ninja torch numpy scipy
COPY pyproject.toml setup.py README.md LICENSE ./
COPY csrc csrc
COPY src src
RUN /opt/collbench/bin/pip install --no-cache-dir --no-build-isolation --constraint constraints.txt . && \
    /opt/collbench/bin/pip uninstall --yes pybind11 ninja

FROM ${BASE}
RUN apt-get update && apt-get install -y --no-install-recommends ca-certificates pciutils python3 && \
    rm -rf /var/lib/apt/lists/* && useradd --create-home --uid 1000 collbench && install -d -m 1777 /data
COPY --from=build /opt/collbench /opt/collbench
ENV PATH=/opt/collbench/bin:$PATH NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
# Runs are saved in /data: mount a folder there to keep them. Any user may write it, for --user names any.
ENV XDG_STATE_HOME=/data
WORKDIR /data
USER collbench
ENTRYPOINT ["collbench"]
CMD ["--help"]
