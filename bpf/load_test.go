package bpf_test

import (
	"errors"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"ipoibd/bpf"
)

// Without capabilities every program is refused with ErrNotPermitted, which says what is
// missing.
func TestLoadingNeedsCapabilities(t *testing.T) {
	errs := make(chan error)
	go func() { // on a thread of its own, which ends with the goroutine
		runtime.LockOSThread()
		header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var none [2]unix.CapUserData
		err := unix.Capset(&header, &none[0])
		if err != nil {
			errs <- err
			close(errs)
			return
		}
		_, err = bpf.NewFilter()
		errs <- err
		_, err = bpf.NewSteering(2)
		errs <- err
		close(errs)
	}()
	n := 0
	for err := range errs {
		if !errors.Is(err, bpf.ErrNotPermitted) || !strings.Contains(err.Error(), "CAP_BPF") {
			t.Errorf("%v", err)
		}
		n++
	}
	if n != 2 {
		t.Errorf("%d results", n)
	}
}

// The error about a program that the verifier refuses contains the verifier's log.
func TestVerifierErrorHasItsLog(t *testing.T) {
	err := bpf.LoadBroken()
	if err == nil || errors.Is(err, bpf.ErrNotPermitted) {
		t.Fatalf("error %v", err)
	}
	for _, part := range []string{`load the eBPF program "broken"`, "the verifier's log:\n", "invalid bpf_context access off=10000 size=4", "processed 1 insns"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%q is missing in: %v", part, err)
		}
	}
}
