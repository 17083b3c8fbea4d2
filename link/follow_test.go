package link_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"os"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"ipoibd/link"
	"ipoibd/link/linktest/nstest"
)

// followEnv makes the test binary a process without privileges that reads the names
// of new interfaces from netlink. It attaches a queue to each whose name begins with
// the variable's value, changes the link type and detaches.
const followEnv = "TEST_IPOIBD_LINK_TEST_FOLLOW"

// follow opens the queues before it gives up its privileges, so that the mode of the
// device node, 0666 on most systems, does not matter.
func follow(prefix string) {
	runtime.LockOSThread()
	nl, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err == nil {
		err = unix.Bind(nl, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: 1 << (unix.RTNLGRP_LINK - 1)})
	}
	fds := make([]int, 500)
	for i := 0; err == nil && i < len(fds); i++ {
		fds[i], err = openTun()
	}
	if err == nil {
		err = errors.Join(syscall.Setgroups(nil), syscall.Setresgid(nobody, nobody, nobody), syscall.Setresuid(nobody, nobody, nobody))
	}
	if err != nil {
		os.Stdout.WriteString(err.Error() + "\n")
		return
	}
	os.Stdout.WriteString("following\n")
	seen := make(map[uint32]bool)
	buf := make([]byte, 8192)
	for len(fds) > 0 {
		size, _, err := unix.Recvfrom(nl, buf, 0)
		if err != nil || size < unix.SizeofNlMsghdr+unix.SizeofIfInfomsg {
			continue
		}
		index, name := binary.NativeEndian.Uint32(buf[unix.SizeofNlMsghdr+4:]), nameIn(buf[:size])
		if seen[index] || !strings.HasPrefix(name, prefix) {
			continue
		}
		seen[index] = true
		if attach(fds[0], name) == nil {
			_ = unix.IoctlSetInt(fds[0], unix.TUNSETLINK, unix.ARPHRD_IEEE80211)
			unix.Close(fds[0])
			fds = fds[1:]
		}
	}
}

// nameIn returns the name in a message of netlink about an interface.
func nameIn(m []byte) string {
	for rest := m[unix.SizeofNlMsghdr+unix.SizeofIfInfomsg:]; len(rest) >= unix.SizeofRtAttr; {
		length := int(binary.NativeEndian.Uint16(rest))
		if length < unix.SizeofRtAttr || length > len(rest) {
			break
		}
		if binary.NativeEndian.Uint16(rest[2:]) == unix.IFLA_IFNAME {
			name, _, _ := bytes.Cut(rest[unix.SizeofRtAttr:length], []byte{0})
			return string(name)
		}
		rest = rest[min((length+unix.RTA_ALIGNTO-1)&^(unix.RTA_ALIGNTO-1), len(rest)):]
	}
	return ""
}

// Other users who learn the random name from netlink, and attach before the interface
// has an owner, can delay a start, but leave no interface behind that no daemon can
// open.
func TestNoOtherUserSpoilsTheCreation(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	for range 4 {
		cmd, says := startAs(t, followEnv, "ipoibd-")
		line, err := says.ReadString('\n')
		must(t, err)
		if strings.Contains(line, unix.EINVAL.Error()) {
			t.Logf("this user namespace has no user %d, so it does not try", nobody)
		} else if line != "following\n" {
			t.Fatalf("the other user says %q", line)
		}
		defer func() { must(t, cmd.Process.Kill()); _ = cmd.Wait() }()
	}
	opened := 0
	for i := range 20 {
		tap, _, err := link.Open(spec("ib0"))
		l, findErr := netlink.LinkByName("ib0")
		if findErr == nil && l.Attrs().EncapType != "ether" {
			t.Errorf("start %d: ib0 has the link type %s", i, l.Attrs().EncapType)
		}
		switch {
		case err == nil:
			must(t, tap.Remove())
			opened++
		case errors.Is(err, link.ErrOwned) && findErr != nil: // one of them held a queue all the time
		default:
			t.Errorf("start %d: %v; delete: %v", i, err, link.Delete("ib0"))
		}
		if findErr == nil && err != nil {
			must(t, netlink.LinkDel(l))
		}
	}
	t.Logf("%d of 20 starts succeeded", opened)
	if opened < 10 {
		t.Error("too few starts succeeded")
	}
}
