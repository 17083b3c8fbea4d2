package udp

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"ipoibd/link/kernel"
	"ipoibd/link/linktest/nstest"
)

// Gates are shut while the process has no descriptor left to find out whether there are IPsec policies, and no longer.
func TestPoliciesAreReadAgain(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	ns, err := kernel.Namespace()
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	setLimit := func(n uint64) {
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: n, Max: limit.Max}); err != nil {
			t.Fatal(err)
		}
	}
	s := gates{watch: &watcher{ns: ns}}
	setLimit(0)
	defer setLimit(limit.Cur)
	known := make(chan struct{})
	go func() {
		s.review(t.Context())
		close(known)
	}()
	unknown := func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.ipsec != nil
	}
	for end := time.Now().Add(10 * time.Second); !unknown(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the policies are known although no descriptor is left")
		}
	}
	setLimit(limit.Cur)
	select {
	case <-known:
	case <-time.After(10 * readAgain):
		t.Fatal("the policies are still unknown")
	}
	if s.ipsec != nil {
		t.Error(s.ipsec)
	}
}
