package main

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"testing"
)

// A take-over runs as the user who has made the control socket, unless that is no socket, or in a directory in which
// anyone could have made it.
func TestListenerOf(t *testing.T) {
	base := t.TempDir()
	for _, c := range []struct {
		name string
		mode os.FileMode
		make func(path string) error
		ok   bool
	}{
		{"socket", 0o755, listenOn, true},
		{"nothing", 0o755, func(string) error { return nil }, false},
		{"file", 0o755, func(path string) error { return os.WriteFile(path, nil, 0o600) }, false},
		{"link", 0o755, func(path string) error { return errors.Join(listenOn(path+"-real"), os.Symlink(path+"-real", path)) }, false},
		{"socket where anyone may", 0o1777, listenOn, false},
		{"socket where a group may", 0o775, listenOn, false},
	} {
		dir := filepath.Join(base, c.name)
		path := filepath.Join(dir, "s")
		if err := errors.Join(os.Mkdir(dir, 0o700), os.Chmod(dir, c.mode), c.make(path)); err != nil {
			t.Fatal(err)
		}
		uid, ok := listenerOf(path)
		if ok != c.ok || ok && uid != os.Geteuid() {
			t.Errorf("%s: user %d, %t; want %t", c.name, uid, ok, c.ok)
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
