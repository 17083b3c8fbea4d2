package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"ipoibd/link/linktest/nstest"
)

const (
	openConns   = 3000
	manyClients = 100
	// controlLimit bounds every exchange on the control socket: the daemon
	// gives a client 5 s for its request.
	controlLimit = 20 * time.Second
	// answerLimit is ten times the duration of a status request among idle
	// connections.
	answerLimit = 2 * time.Second
)

// The daemon answers any input on the control socket or closes the connection,
// and answers an honest client at the same time and afterwards.
func TestAbuseControlSocket(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	s := newSiege(t, join)
	noise := rand.NewChaCha8([32]byte{})
	for _, tt := range []struct {
		name    string
		request []byte
	}{
		{"noise", random(noise, 1<<10)},
		{"much noise", random(noise, 1<<20)},
		{"lines", bytes.Repeat([]byte("\r\n"), 1<<10)},
		{"another protocol", []byte("SSH-2.0-OpenSSH_9.9\r\n")},
		{"unknown path", request("GET", "/etc/passwd", "")},
		{"unknown method", request("DELETE", "/v1/status", "")},
		{"long method", request(strings.Repeat("A", 1<<20), "/v1/status", "")},
		{"long path", request("GET", "/"+strings.Repeat("a", 1<<20), "")},
		{"long header", request("GET", "/v1/status", "X: "+strings.Repeat("a", 1<<20)+"\r\n")},
		{"many headers", request("GET", "/v1/status", strings.Repeat("X: a\r\n", 1<<18))},
		{"huge body", append(request("POST", "/v1/status", "Content-Length: 67108864\r\n"), make([]byte, 64<<20)...)},
		{"body of negative length", request("GET", "/v1/status", "Content-Length: -1\r\n")},
		{"two lengths", request("GET", "/v1/status", "Content-Length: 1\r\nContent-Length: 2\r\n")},
	} {
		s.refused(tt.name, tt.request)
	}
	s.openAndSilent()
	s.askAndNotRead()
	s.end(1)
}

// refused sends a request and requires an HTTP error or no answer.
func (s *siege) refused(name string, request []byte) {
	s.t.Helper()
	conn := s.dialControl()
	defer conn.Close()
	go func() {
		_, _ = conn.Write(request) // fails if the daemon closes the connection
		_ = conn.CloseWrite()
	}()
	answer, err := io.ReadAll(conn)
	if err != nil && !errors.Is(err, syscall.ECONNRESET) {
		s.t.Errorf("%s: the daemon does not close the connection: %v", name, err)
	}
	line, _, _ := strings.Cut(string(answer), "\r\n")
	s.t.Logf("%s: %q", name, line)
	if len(answer) > 0 && !strings.HasPrefix(line, "HTTP/1.1 4") {
		s.t.Errorf("%s: answered by %q, want an error", name, line)
	}
	s.requireAnswers(name)
}

// openAndSilent leaves connections open and waits for the daemon to end them.
func (s *siege) openAndSilent() {
	s.t.Helper()
	start := time.Now()
	conns := make([]*net.UnixConn, openConns)
	for i := range conns {
		conns[i] = s.dialControl()
		defer conns[i].Close()
	}
	s.requireAnswers(fmt.Sprintf("%d connections open", openConns))
	s.t.Logf("%d descriptors", s.a.daemon.status().FDs)
	for i, conn := range conns {
		if _, err := io.ReadAll(conn); err != nil {
			s.t.Fatalf("connection %d: the daemon does not close it: %v", i, err)
		}
	}
	s.t.Logf("all of them closed after %v", time.Since(start).Round(time.Millisecond))
}

// askAndNotRead sends many requests on many connections and reads no answer.
func (s *siege) askAndNotRead() {
	s.t.Helper()
	many := bytes.Repeat(request("GET", "/v1/status", ""), 1000)
	for range manyClients {
		conn := s.dialControl()
		defer conn.Close()
		if err := conn.SetWriteDeadline(time.Now().Add(10 * time.Millisecond)); err != nil {
			s.t.Fatal(err)
		}
		_, _ = conn.Write(many) // as much as the daemon accepts
	}
	s.requireAnswers("answers not read")
}

// requireAnswers measures the status request of an honest client.
func (s *siege) requireAnswers(when string) {
	s.t.Helper()
	start := time.Now()
	s.a.daemon.status()
	if took := time.Since(start); took > answerLimit {
		s.t.Errorf("%s: the status request took %v", when, took)
	}
}

func (s *siege) dialControl() *net.UnixConn {
	s.t.Helper()
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: s.a.daemon.control, Net: "unix"})
	if err == nil {
		err = conn.SetDeadline(time.Now().Add(controlLimit))
	}
	if err != nil {
		s.t.Fatalf("connect to the control socket: %v", err)
	}
	return conn
}

func request(method, path, headers string) []byte {
	return []byte(method + " " + path + " HTTP/1.1\r\nHost: x\r\n" + headers + "\r\n")
}

func random(r *rand.ChaCha8, n int) []byte {
	b := make([]byte, n)
	_, _ = r.Read(b) // never fails
	return b
}

// stranger is a user who is neither root nor the daemon's user.
const stranger = 65534

// Another user is refused by the socket's mode, and also by the daemon if the
// mode is wrong.
func TestAbuseControlByAnotherUser(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	h := newHosts(t, 1)[0]
	h.join()
	st, err := os.Stat(h.daemon.control)
	if err != nil || st.Mode().Perm() != 0o600 {
		t.Fatalf("the control socket: %v, %v, want mode 0600", st, err)
	}
	chmod(t, h.dir, 0o755) // a directory created by the daemon may be entered by any user
	_, err = dialAs(stranger, h.daemon.control)
	if errors.Is(err, syscall.EINVAL) {
		t.Log("this user namespace has no second user, so only the mode is checked")
		return
	}
	if !errors.Is(err, fs.ErrPermission) {
		t.Errorf("a stranger connects: %v, want %v", err, fs.ErrPermission)
	}
	chmod(t, h.daemon.control, 0o666)
	conn, err := dialAs(stranger, h.daemon.control)
	if err != nil {
		t.Fatalf("connect to a socket of mode 0666: %v", err)
	}
	defer conn.Close()
	requireForbidden(t, conn)
	h.daemon.status() // root gets an answer
}

func chmod(t *testing.T, path string, mode os.FileMode) {
	t.Helper()
	if err := os.Chmod(path, mode); err != nil {
		t.Fatal(err)
	}
}

// dialAs connects to a socket as another user. It returns EINVAL if that user
// does not exist.
func dialAs(uid uintptr, path string) (conn *net.UnixConn, err error) {
	apart(func() {
		if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, uid, uid, uid); errno != 0 {
			err = os.NewSyscallError("setresuid", errno)
			return
		}
		conn, err = net.DialUnix("unix", nil, &net.UnixAddr{Name: path, Net: "unix"})
	})()
	return conn, err
}

// requireForbidden requests the status and requires a refusal.
func requireForbidden(t *testing.T, conn *net.UnixConn) {
	t.Helper()
	if _, err := conn.Write(request("GET", "/v1/status", "Connection: close\r\n")); err != nil {
		t.Fatal(err)
	}
	answer, err := io.ReadAll(conn)
	if err != nil || !bytes.HasPrefix(answer, []byte("HTTP/1.1 403 ")) || bytes.Contains(answer, []byte(ifName)) {
		t.Errorf("answer to another user: %v, want status 403 without %s:\n%s", err, ifName, answer)
	}
	t.Logf("%s", answer[max(0, len(answer)-100):])
}
