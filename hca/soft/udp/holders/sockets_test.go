package holders_test

import (
	"fmt"
	"net"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"ipoibd/hca/soft/udp/holders"
	"ipoibd/link/linktest/nstest"
)

// Sockets of both families are listed if they are on the port, and bound to the netdev or to none.
func TestSockets(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	ns, _ := nstest.Pair(t, 1500)
	var netdev *net.Interface
	ns.Do(func() {
		var err error
		if netdev, err = net.InterfaceByName(nstest.Dev); err != nil {
			t.Fatal(err)
		}
	})
	const loopback = 1
	for _, tt := range []struct {
		family, index int
		port          uint16
		want          bool
	}{
		{unix.AF_INET, 0, 4791, true},
		{unix.AF_INET6, 0, 4791, true},
		{unix.AF_INET, netdev.Index, 4791, true},
		{unix.AF_INET6, netdev.Index, 4791, true},
		{unix.AF_INET, loopback, 4791, false},
		{unix.AF_INET6, loopback, 4791, false},
		{unix.AF_INET, netdev.Index, 4792, false},
		{unix.AF_INET6, 0, 4792, false},
	} {
		t.Run(fmt.Sprintf("family %d, netdev %d, port %d", tt.family, tt.index, tt.port), func(t *testing.T) {
			var inode uint64
			var got []uint64
			ns.Do(func() {
				inode = bind(t, tt.family, tt.index, tt.port)
				var err error
				if got, err = holders.Sockets(4791, netdev.Index); err != nil {
					t.Fatal(err)
				}
			})
			if !tt.want {
				if len(got) > 0 {
					t.Errorf("inodes %d, want none", got)
				}
				return
			}
			if len(got) != 1 || got[0] != inode {
				t.Errorf("inodes %d, want %d", got, inode)
			}
			if who := holders.Processes(got); len(who) != 1 || who[0].PID != os.Getpid() {
				t.Errorf("processes %v, want this one", who)
			}
		})
	}
}

// bind binds a socket for the duration of the test, and returns its inode.
func bind(t *testing.T, family, index int, port uint16) uint64 {
	t.Helper()
	fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	var addr unix.Sockaddr = &unix.SockaddrInet4{Port: int(port)}
	if family == unix.AF_INET6 {
		addr = &unix.SockaddrInet6{Port: int(port)}
	}
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_BINDTOIFINDEX, index); err != nil {
		t.Fatal(err)
	}
	if err := unix.Bind(fd, addr); err != nil {
		t.Fatal(err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		t.Fatal(err)
	}
	return st.Ino
}
