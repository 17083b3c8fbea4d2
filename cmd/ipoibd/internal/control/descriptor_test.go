package control

import (
	"encoding/json"
	"io"
	"net"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// A network namespace that a client passes with a request reaches the daemon, which may not open its path.
// Without one, it gets none.
func TestNamespaceIsPassedToTheDaemon(t *testing.T) {
	f := newFake()
	path := serve(t, f)
	ns, err := os.Open("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	want, err := ns.Stat()
	if err != nil {
		t.Fatal(err)
	}
	long := `{"name":"x","routes":["` + strings.Repeat("x", maxBody/2) + `"]}`
	for _, body := range []string{`{"name":"x"}`, long} {
		if err := Post(t.Context(), path, &AddRequest{RawMessage: json.RawMessage(body), Namespace: ns}); err != nil {
			t.Fatal(err)
		}
		if got := f.passed(); got == nil || !os.SameFile(got, want) {
			t.Errorf("%.20s: the daemon got %v", body, got)
		}
	}
	if err := Post(t.Context(), path, &AddRequest{RawMessage: json.RawMessage(long)}); err != nil || f.passed() != nil {
		t.Errorf("without one, the daemon got %v, %v", f.passed(), err)
	}
	if _, err := ns.Stat(); err != nil {
		t.Errorf("the client's own descriptor: %v", err)
	}
}

// The daemon receives only the first of several descriptors: the others never occupy any of its own.
func TestOnlyOneDescriptorIsReceived(t *testing.T) {
	f := newFake()
	c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: serve(t, f), Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	var files [5]*os.File
	var fds []int
	for i, path := range []string{"/proc/self/ns/net", "/dev/zero", "/dev/null", "/dev/full", "/dev/urandom"} {
		if files[i], err = os.Open(path); err != nil {
			t.Fatal(err)
		}
		defer files[i].Close()
		fds = append(fds, int(files[i].Fd()))
	}
	request := "POST /v1/interfaces HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 12\r\n\r\n{\"name\":\"x\"}"
	if _, _, err := c.WriteMsgUnix([]byte(request), unix.UnixRights(fds...), nil); err != nil {
		t.Fatal(err)
	}
	if answer, err := io.ReadAll(c); err != nil || !strings.HasPrefix(string(answer), "HTTP/1.1 200 ") {
		t.Fatalf("%q, %v", answer, err)
	}
	got := f.passed()
	if want, err := files[0].Stat(); err != nil || got == nil || !os.SameFile(got, want) {
		t.Errorf("the daemon got %v, want the first descriptor; %v", got, err)
	}
}

// However many descriptors a client sends, and with whatever request, the daemon keeps one at most, and none
// once the connection has ended.
func TestDescriptorsOfClientsAreClosed(t *testing.T) {
	path := serve(t, newFake())
	before := openFiles(t)
	for _, request := range []string{
		"GET /v1/status HTTP/1.1\r\nHost: x\r\n\r\n",
		"POST /v1/suspend HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}",
		"POST /v1/interfaces HTTP/1.1\r\nHost: x\r\nContent-Length: 12\r\n\r\n{\"name\":\"x\"}",
		"no request",
	} {
		c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: path, Net: "unix"})
		if err != nil {
			t.Fatal(err)
		}
		zero, err := os.Open("/dev/zero")
		if err != nil {
			t.Fatal(err)
		}
		fd := int(zero.Fd())
		for i := range len(request) {
			if _, _, err := c.WriteMsgUnix([]byte{request[i]}, unix.UnixRights(fd, fd, fd, fd, fd), nil); err != nil {
				break // refused early
			}
		}
		zero.Close()
		// The list of open files is no snapshot, so it is read until the daemon has read everything.
		eventually(t, "both ends of the connection and one descriptor are open", func() bool { return openFiles(t) <= before+3 })
		c.Close()
		eventually(t, "nothing of the connection is open", func() bool { return openFiles(t) <= before })
	}
}

func openFiles(t *testing.T) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}
