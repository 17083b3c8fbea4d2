package sandbox

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"testing"

	"ipoibd/link/linktest/nstest"
)

// A take-over runs as the user who has made the control socket, unless another user could have made it.
func TestSocketUser(t *testing.T) {
	if nstest.Enter(t) { // /run is empty
		return
	}
	const stranger = 4711
	for _, c := range []struct {
		name  string
		make  func(dir, socket string) error
		owner int // of the socket; -1: an error
	}{
		{"of root", func(_, socket string) error { return listenOn(socket) }, 0},
		{"of a user, in a directory of that user", func(dir, socket string) error {
			return errors.Join(listenOn(socket), os.Chown(socket, stranger, stranger), os.Chown(dir, stranger, stranger))
		}, stranger},
		{"behind a link of systemd", func(dir, socket string) error {
			private := dir + "-private"
			return errors.Join(os.Remove(dir), os.Mkdir(private, 0o755), os.Symlink(private, dir), listenOn(socket))
		}, 0},
		{"nothing", func(string, string) error { return nil }, -1},
		{"a file", func(_, socket string) error { return os.WriteFile(socket, nil, 0o600) }, -1},
		{"a link", func(_, socket string) error {
			return errors.Join(listenOn(socket+"-real"), os.Symlink(socket+"-real", socket))
		}, -1},
		{"where anyone may make one", func(dir, socket string) error {
			return errors.Join(listenOn(socket), os.Chmod(dir, 0o777|os.ModeSticky))
		}, -1},
		{"where a group may make one", func(dir, socket string) error { return errors.Join(listenOn(socket), os.Chmod(dir, 0o775)) }, -1},
		{"below a directory of a user", func(dir, socket string) error {
			return errors.Join(listenOn(socket), os.Chown(filepath.Dir(dir), stranger, stranger))
		}, -1},
		{"in a directory of root in one like /tmp", func(dir, socket string) error {
			return errors.Join(listenOn(socket), os.Chmod(filepath.Dir(dir), 0o777|os.ModeSticky))
		}, 0},
		{"in a directory of a user in one like /tmp", func(dir, socket string) error {
			return errors.Join(listenOn(socket), os.Chown(socket, stranger, stranger), os.Chown(dir, stranger, stranger), os.Chmod(filepath.Dir(dir), 0o777|os.ModeSticky))
		}, -1},
		{"below a directory that anyone may change", func(dir, socket string) error {
			return errors.Join(listenOn(socket), os.Chmod(filepath.Dir(dir), 0o777)) //nolint:gosec // that is the case
		}, -1},
	} {
		dir := filepath.Join("/run", c.name, "d")
		socket := filepath.Join(dir, "s")
		if err := errors.Join(os.MkdirAll(dir, 0o755), c.make(dir, socket)); err != nil {
			t.Fatal(err)
		}
		uid, err := SocketUser(socket)
		if (err == nil) != (c.owner >= 0) || err == nil && uid != c.owner {
			t.Errorf("%s: user %d, %v; want %d", c.name, uid, err, c.owner)
		}
	}
}

// listenOn leaves a socket behind.
func listenOn(path string) error {
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path})
	if err != nil {
		return err
	}
	l.SetUnlinkOnClose(false)
	return l.Close()
}
