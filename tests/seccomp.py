"""Code with which a process forbids itself system calls by the kernel's seccomp filter, as containers do."""

# forbid_policies() does what Docker's default profile does without CAP_SYS_NICE: EPERM [moby, profiles/seccomp].
FORBID = """
import ctypes, os, platform
class Instruction(ctypes.Structure):
    _fields_ = [("code", ctypes.c_ushort), ("yes", ctypes.c_ubyte), ("no", ctypes.c_ubyte), ("value", ctypes.c_uint)]
class Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.POINTER(Instruction))]
def system_call(*arguments):
    return ctypes.CDLL(None).syscall(*arguments)
MBIND, SET_MEMPOLICY, GET_MEMPOLICY = (235, 237, 236) if platform.machine() == "aarch64" else (237, 238, 239)
def forbid(error, *calls):
    load, jump_if_equal, end = 0x20, 0x15, 0x06  # BPF_LD|W|ABS, BPF_JMP|JEQ|K, BPF_RET|K [linux/bpf_common.h]
    jumps = [Instruction(jump_if_equal, len(calls) - at, 0, call) for at, call in enumerate(calls)]
    allow, refuse = Instruction(end, 0, 0, 0x7FFF0000), Instruction(end, 0, 0, 0x50000 | error)
    program = (Instruction * (len(calls) + 3))(Instruction(load, 0, 0, 0), *jumps, allow, refuse)
    assert ctypes.CDLL(None).prctl(38, 1, 0, 0, 0) == 0  # PR_SET_NO_NEW_PRIVS
    assert ctypes.CDLL(None).prctl(22, 2, ctypes.byref(Program(len(program), program))) == 0  # PR_SET_SECCOMP
def forbid_policies(error=1):
    forbid(error, MBIND, SET_MEMPOLICY, GET_MEMPOLICY)
"""
