package sandbox

import "golang.org/x/sys/unix"

const (
	auditArch  = unix.AUDIT_ARCH_AARCH64
	foreignBit = 0x40000000 // above all calls
)

// deniedHere are the denied calls that only this architecture has.
var deniedHere []uint32
