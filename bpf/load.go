package bpf

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// Sentinel errors of this package. They are wrapped with the kernel's error.
var (
	// ErrNotPermitted means that the process may not load or attach a program. That requires
	// CAP_BPF, CAP_PERFMON (for the verifier) and CAP_NET_ADMIN in the initial user namespace,
	// and a seccomp filter that permits bpf(2).
	ErrNotPermitted = errors.New("not permitted to use eBPF: " +
		"run as root, or with CAP_BPF, CAP_PERFMON and CAP_NET_ADMIN")
	// ErrNotSupported means that the kernel lacks a feature that a program needs.
	ErrNotSupported = errors.New("the kernel does not support this eBPF program")
)

// load loads the maps and programs of a specification into the fields of objects. If the verifier
// refuses a program, the error contains the verifier's log.
func load(name string, spec *ebpf.CollectionSpec, objects any) error {
	err := spec.LoadAndAssign(objects, nil)
	var refused *ebpf.VerifierError
	if errors.As(err, &refused) && !errors.Is(err, unix.EPERM) {
		err = fmt.Errorf("%w; the verifier's log:\n%s", err, fmt.Sprintf("%+v", refused))
	}
	if err != nil {
		return fmt.Errorf("load the eBPF program %q: %w", name, classify(err))
	}
	return nil
}

// classify wraps an error of the kernel with the matching sentinel.
func classify(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.EPERM): // EACCES means that the verifier has refused a program
		return fmt.Errorf("%w (%w)", ErrNotPermitted, unix.EPERM) // the library suspects RLIMIT_MEMLOCK
	case errors.Is(err, ebpf.ErrNotSupported):
		return fmt.Errorf("%w (%w)", ErrNotSupported, err)
	}
	return err
}

// Histogram counts values by powers of two: element 0 counts the value 0, and element n
// the values from 2^(n-1) to 2^n-1. The last element also counts all larger values.
type Histogram []uint64
