package sandbox

import (
	"fmt"
	"os"
	"slices"

	"github.com/moby/sys/capability"
	"golang.org/x/sys/unix"
)

// noRoot are the securebits with which root gets no capabilities by execve
// (include/uapi/linux/securebits.h): SECBIT_NOROOT, and its lock.
const noRoot = 1<<0 | 1<<1

// drop drops all capabilities of the calling thread except keep, also as bounds and across execve, and sets
// no_new_privs. A process without CAP_SETPCAP cannot lower its bounds: missing says that if they are too high.
// With no_new_privs nothing can be gained from them.
func drop(keep []capability.Cap) (missing string, err error) {
	caps, err := capability.NewPid2(0)
	if err != nil {
		return "", err
	}
	if err := caps.Load(); err != nil {
		return "", fmt.Errorf("read capabilities: %w", err)
	}
	var kept []capability.Cap
	for _, c := range keep {
		if caps.Get(capability.PERMITTED, c) && caps.Get(capability.BOUNDING, c) {
			kept = append(kept, c)
		}
	}
	superfluous := func(c capability.Cap) bool { return !slices.Contains(keep, c) }
	if caps.Get(capability.EFFECTIVE, capability.CAP_SETPCAP) {
		bits, err := unix.PrctlRetInt(unix.PR_GET_SECUREBITS, 0, 0, 0, 0)
		if err == nil {
			err = unix.Prctl(unix.PR_SET_SECUREBITS, uintptr(bits|noRoot), 0, 0, 0)
		}
		if err != nil {
			return "", fmt.Errorf("set securebits: %w", err)
		}
	} else if slices.ContainsFunc(held(caps, capability.BOUNDING), superfluous) {
		missing = "the bounding set of capabilities stays as it is, because CAP_SETPCAP is missing"
	}
	const all = capability.CAPS | capability.BOUNDS | capability.AMBS
	caps.Clear(all)
	caps.Set(all, kept...)
	if err := caps.Apply(all); err != nil {
		return "", fmt.Errorf("drop capabilities: %w", err)
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return "", os.NewSyscallError("prctl PR_SET_NO_NEW_PRIVS", err)
	}
	return missing, nil
}

// held returns the capabilities in a set.
func held(caps capability.Capabilities, set capability.CapType) (out []capability.Cap) {
	for _, c := range capability.ListKnown() {
		if caps.Get(set, c) {
			out = append(out, c)
		}
	}
	return out
}
