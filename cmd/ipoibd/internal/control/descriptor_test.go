package control

import (
	"encoding/json"
	"net"
	"os"
	"strings"
	"testing"
	"time"

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
		if f.namespace == nil || !os.SameFile(f.namespace, want) {
			t.Errorf("%.20s: the daemon got %v", body, f.namespace)
		}
	}
	if err := Post(t.Context(), path, &AddRequest{RawMessage: json.RawMessage(long)}); err != nil || f.namespace != nil {
		t.Errorf("without one, the daemon got %v, %v", f.namespace, err)
	}
	if _, err := ns.Stat(); err != nil {
		t.Errorf("the client's own descriptor: %v", err)
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
		if n := openFiles(t); n > before+4 { // both ends of the connection, the kept descriptor, and one that was just received
			t.Errorf("%.20q: %d descriptors, %d before", request, n, before)
		}
		c.Close()
	}
	for end := time.Now().Add(limit); openFiles(t) > before; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d descriptors, %d before", openFiles(t), before)
		}
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
