package kernel

import (
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A duplicate outlives the original, and is not inherited by a program that is executed.
func TestDuplicate(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	fd, err := Duplicate(w)
	if err != nil {
		t.Fatal(err)
	}
	w.Close()
	if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC == 0 {
		t.Errorf("flags %#x, %v, want close-on-exec", flags, err)
	}
	if _, err := unix.Write(fd, []byte("x")); err != nil {
		t.Error(err)
	}
	CloseAll([]int{fd})
	if _, err := Duplicate(w); err == nil {
		t.Error("a closed file was duplicated")
	}
}

// The peer of a connection is this process, on either side.
func TestPeer(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := net.DialTimeout("unix", path, 10*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	peer, err := Peer(c.(*net.UnixConn))
	if err != nil || int(peer.Pid) != os.Getpid() || int(peer.Uid) != os.Geteuid() {
		t.Errorf("%+v, %v", peer, err)
	}
	c.Close()
	if peer, err := Peer(c.(*net.UnixConn)); err == nil {
		t.Errorf("after Close: %+v", peer)
	}
}
