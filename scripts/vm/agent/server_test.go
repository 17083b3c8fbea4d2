package main

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"ipoibd/scripts/vm/protocol"
)

// client is the test's end of an agent's channel.
type client struct {
	t    *testing.T
	conn net.Conn
	in   *protocol.Reader
}

// serving runs a server until the end of the test.
func serving(t *testing.T) *client {
	t.Helper()
	ours, theirs := net.Pipe()
	done := make(chan error)
	go func() { done <- newServer(theirs).serve(protocol.NewReader(theirs)) }()
	t.Cleanup(func() {
		ours.Close()
		if err := <-done; err == nil {
			t.Error("the server ended without an error")
		}
	})
	return &client{t, ours, protocol.NewReader(ours)}
}

func (c *client) send(r protocol.Request) {
	c.t.Helper()
	if err := protocol.Write(c.conn, r); err != nil {
		c.t.Fatal(err)
	}
}

// end reads replies until a request is done, and returns the output of its process.
func (c *client) end(id uint32) (out, errOut string, done protocol.Done) {
	c.t.Helper()
	for {
		var r protocol.Reply
		if err := c.in.Read(&r); err != nil {
			c.t.Fatal(err)
		}
		if r.ID != id {
			c.t.Fatalf("a reply to request %d, want one to %d", r.ID, id)
		}
		out, errOut = out+string(r.Out), errOut+string(r.Err)
		if r.Done != nil {
			return out, errOut, *r.Done
		}
	}
}

func TestStart(t *testing.T) {
	c := serving(t)
	for i, tt := range []struct {
		args        []string
		out, errOut string
		done        protocol.Done
	}{
		{[]string{"sh", "-c", "echo $X; echo oh >&2; exit 3"}, "y\n", "oh\n", protocol.Done{Code: 3}},
		{[]string{"true"}, "", "", protocol.Done{}},
		{[]string{"sh", "-c", "kill -TERM $$"}, "", "", protocol.Done{Code: -1, Signal: int(syscall.SIGTERM)}},
		{[]string{"sh", "-c", "sleep 1000 & echo $!"}, "", "", protocol.Done{}}, // does not wait for the background process
	} {
		id := uint32(i + 1)
		c.send(protocol.Request{ID: id, Start: &protocol.Start{Args: tt.args, Env: []string{"X=y"}}})
		out, errOut, done := c.end(id)
		if tt.args[0] == "sh" && strings.HasPrefix(tt.args[2], "sleep") {
			end(t, out)
			out = ""
		}
		if out != tt.out || errOut != tt.errOut || done != tt.done {
			t.Errorf("%q: stdout %q, stderr %q, %+v, want %q, %q, %+v", tt.args, out, errOut, done, tt.out, tt.errOut, tt.done)
		}
	}
}

// end ends a process that outlived its request, by its PID.
func end(t *testing.T, pid string) {
	t.Helper()
	c := serving(t)
	c.send(protocol.Request{ID: 1, Start: &protocol.Start{Args: []string{"kill", strings.TrimSpace(pid)}}})
	if _, errOut, done := c.end(1); done.Code != 0 {
		t.Errorf("kill %s: %s", pid, errOut)
	}
}

func TestLongOutput(t *testing.T) {
	c := serving(t)
	c.send(protocol.Request{ID: 1, Start: &protocol.Start{Args: []string{"head", "-c", "1000000", "/dev/zero"}}})
	if out, _, _ := c.end(1); len(out) != 1000000 {
		t.Errorf("%d bytes, want 1000000", len(out))
	}
}

func TestSignal(t *testing.T) {
	c := serving(t)
	c.send(protocol.Request{ID: 1, Start: &protocol.Start{Args: []string{"sleep", "1000"}}})
	c.send(protocol.Request{ID: 2, Signal: &protocol.Signal{ID: 1, Number: int(syscall.SIGKILL)}})
	ended := map[uint32]protocol.Done{}
	for range 2 { // in either order
		var r protocol.Reply
		if err := c.in.Read(&r); err != nil || r.Done == nil {
			t.Fatalf("reply %+v, %v, want the end of a process", r, err)
		}
		ended[r.ID] = *r.Done
	}
	if ended[1].Signal != int(syscall.SIGKILL) || ended[2] != (protocol.Done{}) {
		t.Errorf("ends %+v, want one by SIGKILL and one without an error", ended)
	}
}

func TestPut(t *testing.T) {
	c := serving(t)
	path := filepath.Join(t.TempDir(), "deep", "file")
	for i, put := range []protocol.Put{
		{Path: path, Data: []byte("what was there"), Mode: 0o700},
		{Path: path, Data: []byte("one "), Mode: 0o700},
		{Path: path, Data: []byte("two"), Append: true},
	} {
		id := uint32(i + 1)
		c.send(protocol.Request{ID: id, Put: &put})
		if _, _, done := c.end(id); done != (protocol.Done{}) {
			t.Fatalf("end of a put: %+v, want success", done)
		}
	}
	if text, err := os.ReadFile(path); err != nil || string(text) != "one two" {
		t.Errorf("%q, %v, want one two", text, err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("%v, %v, want mode 0700", info, err)
	}
}

func TestRefused(t *testing.T) {
	c := serving(t)
	for i, r := range []protocol.Request{
		{},
		{Start: &protocol.Start{}},
		{Start: &protocol.Start{Args: []string{"/nonexistent"}}},
		{Signal: &protocol.Signal{ID: 77, Number: 9}},
		{Put: &protocol.Put{Path: "/proc/nonexistent/file"}},
	} {
		r.ID = uint32(i + 1)
		c.send(r)
		if _, _, done := c.end(r.ID); done.Error == "" {
			t.Errorf("request %+v: no error", r)
		}
	}
}
