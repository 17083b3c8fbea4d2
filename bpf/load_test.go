package bpf_test

import (
	"errors"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"ipoibd/bpf"
)

// withoutCapabilities runs f on a thread without capabilities, which ends with it.
func withoutCapabilities(t *testing.T, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var none [2]unix.CapUserData
		if err := unix.Capset(&header, &none[0]); err != nil {
			t.Error(err)
			return
		}
		f()
	}()
	<-done
}

// Without capabilities the programs are refused with ErrNotPermitted, which says what is missing.
func TestLoadingNeedsCapabilities(t *testing.T) {
	withoutCapabilities(t, func() {
		if _, err := bpf.Load(1); !errors.Is(err, bpf.ErrNotPermitted) || !strings.Contains(err.Error(), "CAP_BPF") {
			t.Errorf("%v", err)
		}
	})
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

// Old and real-time kernels have no fast path, whatever their verifier accepts.
func TestFastRefused(t *testing.T) {
	for _, c := range []struct {
		version uint32
		build   string
		refused bool
	}{
		{6<<16 | 1<<8, "#1 SMP PREEMPT_DYNAMIC Debian 6.1.158-1 (2025-11-09)", false},
		{6<<16 | 18<<8 | 5, "#1 SMP PREEMPT_{LAZY,DYNAMIC} Mon Nov 30", false},
		{5<<16 | 255<<8, "#1 SMP", true},
		{6<<16 | 12<<8, "#1 SMP PREEMPT_RT Debian 6.12.57-1 (2025-11-05)", true},
		{6<<16 | 18<<8, "#1 SMP PREEMPT_{RT,LAZY} Mon Nov 30", true},
	} {
		if err := bpf.FastRefused(c.version, c.build); errors.Is(err, bpf.ErrNotSupported) != c.refused {
			t.Errorf("%x %q: %v", c.version, c.build, err)
		}
	}
}
