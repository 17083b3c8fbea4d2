package udp_test

import (
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"ipoibd/hca/soft/udp"
	"ipoibd/link/linktest/nstest"
)

// A process without CAP_NET_ADMIN in the initial user namespace gets a small send
// buffer, and SendBuf shows it.
func TestSendBufThatTheSystemLimits(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	ns, _ := nstest.Pair(t, 1500)
	ns.Do(func() { // on a thread that ends with the test
		runtime.LockOSThread()
		dropNetAdmin(t)
		tr, err := udp.Open(udp.Config{Netdev: nstest.Dev})
		if err != nil {
			t.Fatal(err)
		}
		defer tr.Close()
		size, asked, err := tr.SendBuf()
		if err != nil || asked < 128<<20 || size <= 0 || size >= asked {
			t.Errorf("SendBuf = %d of %d, %v; want less than requested", size, asked, err)
		}
	})
}

// dropNetAdmin removes CAP_NET_ADMIN from the effective capabilities of this thread.
func dropNetAdmin(t *testing.T) {
	t.Helper()
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&hdr, &data[0]); err != nil {
		t.Fatal(err)
	}
	data[0].Effective &^= 1 << unix.CAP_NET_ADMIN
	if err := unix.Capset(&hdr, &data[0]); err != nil {
		t.Fatal(err)
	}
}
