package coordinator

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"math/bits"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"ipoibd/qprecovery/reset"
)

// joinAt joins at path; the test closes it.
func joinAt(t *testing.T, path, name string) *Coordinator {
	t.Helper()
	c, err := Join(t.Context(), Config{
		Device: "stub", Name: name, Path: path, Settle: time.Millisecond,
		Reset: (&verb{}).reset, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// leaveStale leaves a socket behind as a process that was killed does.
func leaveStale(t *testing.T, path string) {
	t.Helper()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	l.Close()
}

// Of many who start at once at a dead host's socket one hosts, and all find it;
// when it leaves, one of the others does.
func TestR16OneHost(t *testing.T) {
	checkLeaks(t)
	const rounds, members = 20, 8
	for round := range rounds {
		path := filepath.Join(t.TempDir(), "device.sock")
		leaveStale(t, path)
		all := joinTogether(t, path, members)
		for len(all) > 0 {
			leaves := theHost(t, all)
			if round%2 == 1 {
				leaves = round % len(all) // anybody
			}
			all[leaves].Close()
			all = slices.Delete(all, leaves, leaves+1)
		}
		if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("the last one left the socket: %v", err)
		}
	}
}

func joinTogether(t *testing.T, path string, n int) []*Coordinator {
	all := make([]*Coordinator, n)
	var group sync.WaitGroup
	for i := range all {
		group.Go(func() {
			c, err := Join(t.Context(), Config{
				Device: "stub", Name: fmt.Sprint(i), Path: path, Reset: (&verb{}).reset, Log: slog.New(slog.DiscardHandler),
			})
			if err != nil {
				t.Error(err)
				return
			}
			all[i] = c
		})
	}
	group.Wait()
	if t.Failed() {
		t.FailNow()
	}
	return all
}

// theHost waits until everybody is registered with the same host, and returns
// which it is.
func theHost(t *testing.T, all []*Coordinator) int {
	t.Helper()
	for end := time.Now().Add(ample); time.Now().Before(end); time.Sleep(time.Millisecond) {
		hosts, up, at := 0, 0, 0
		for i, c := range all {
			s := c.Status()
			if s.Up && len(s.Members) == len(all)-1 {
				up++
			}
			if s.Hosting {
				hosts, at = hosts+1, i
			}
		}
		if hosts > 1 {
			t.Fatalf("%d hosts", hosts)
		}
		if hosts == 1 && up == len(all) {
			return at
		}
	}
	t.Fatalf("no host that all know: %+v", all[0].Status())
	return 0
}

// The socket has mode 0600, whatever the umask, and it was made with it: nothing
// changed the mode afterwards.
func TestR16SocketIsPrivateFromTheFirst(t *testing.T) {
	checkLeaks(t)
	defer unix.Umask(unix.Umask(0))
	dir := t.TempDir()
	path := filepath.Join(dir, "device.sock")
	changes := watchFolder(t, dir)
	defer joinAt(t, path, "ib0").Close()
	for file, want := range map[string]fs.FileMode{path: fs.ModeSocket | 0o600, path + ".lock": 0o600} {
		st, err := os.Lstat(file)
		if err != nil {
			t.Fatal(err)
		}
		if st.Mode() != want {
			t.Errorf("%s: %v, want %v", file, st.Mode(), want)
		}
	}
	if got := changes(); got != unix.IN_CREATE {
		t.Errorf("in the folder there was %#x, want %#x only", got, unix.IN_CREATE)
	}
}

// watchFolder returns what tells which of creation and change of attributes there
// has been in a folder.
func watchFolder(t *testing.T, dir string) func() uint32 {
	t.Helper()
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	if _, err := unix.InotifyAddWatch(fd, dir, unix.IN_CREATE|unix.IN_ATTRIB); err != nil {
		t.Fatal(err)
	}
	return func() (seen uint32) {
		buf := make([]byte, 4096)
		n, err := unix.Read(fd, buf)
		if err != nil {
			t.Fatal(err)
		}
		for b := buf[:n]; len(b) > 0; b = b[unix.SizeofInotifyEvent+binary.NativeEndian.Uint32(b[12:]):] {
			seen |= binary.NativeEndian.Uint32(b[4:])
		}
		return seen
	}
}

func TestR16WhoMayShare(t *testing.T) {
	for _, c := range []struct {
		peer, self uint32
		may        bool
	}{
		{0, 0, true},
		{0, 1000, true},
		{1000, 1000, true},
		{1000, 0, false},
		{1001, 1000, false},
		{65534, 0, false},
	} {
		if got := mayShare(c.peer, c.self); got != c.may {
			t.Errorf("user %d with user %d: %v", c.peer, c.self, got)
		}
	}
}

// Another user is refused, even where the socket's mode would let it in.
func TestR16ForeignUser(t *testing.T) {
	if os.Geteuid() != 0 {
		return // nobody but root can be somebody else; TestR16WhoMayShare has the rule
	}
	c, path := hostHere(t, Config{Path: filepath.Join(openFolder(t), "device.sock")})
	if err := os.Chmod(path, 0o666); err != nil {
		t.Fatal(err)
	}
	r := newRaw(t, dialAs(t, 65534, path))
	_, _ = r.nc.Write(frame(t, reset.Hello{ID: 6, Name: "raw"})) // the host may close before
	if m, err := r.hear(); err == nil {
		t.Errorf("it is told %#v", m)
	}
	awaitStatus(t, c, func(s Status) bool { return s.Refused == 1 && len(s.Members) == 0 })
	dialRaw(t, path).hello(7)
}

// openFolder is a folder that every user can enter.
func openFolder(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, d := range []string{dir, filepath.Dir(dir)} { // the latter is the test's as well
		if err := os.Chmod(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// dialAs connects as another user, which one thread becomes; it ends with the
// goroutine that is locked to it.
func dialAs(t *testing.T, uid uintptr, path string) net.Conn {
	t.Helper()
	var nc net.Conn
	var err error
	var group sync.WaitGroup
	group.Go(func() {
		runtime.LockOSThread()
		if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, uid, uid, uid); errno != 0 {
			err = errno
			return
		}
		nc, err = net.DialUnix("unix", nil, &net.UnixAddr{Name: path, Net: "unix"})
	})
	group.Wait()
	if err != nil {
		t.Fatal(err)
	}
	return nc
}

func TestR16JoinSaysWhatIsWrong(t *testing.T) {
	checkLeaks(t)
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(dir, "link")
	if err := os.Symlink(file, link+".lock"); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]error{
		file:                          ErrNotSocket,
		dir:                           ErrNotSocket,
		filepath.Join(file, "a.sock"): unix.ENOTDIR,
		link:                          unix.ELOOP,
	} {
		if _, err := Join(t.Context(), Config{Device: "stub", Path: path, Log: slog.New(slog.DiscardHandler)}); !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", path, err, want)
		}
	}
}

// Join ends with its context, and says what it waited for.
func TestR16JoinWaitsForTheHost(t *testing.T) {
	checkLeaks(t)
	path := filepath.Join(t.TempDir(), "device.sock")
	host := joinAt(t, path, "ib0")
	defer host.Close()
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, err := Join(ctx, Config{Device: "stub", Path: path, Reset: (&verb{}).reset, Log: slog.New(slog.DiscardHandler)})
	if !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, errHosted) {
		t.Error(err)
	}
}

// Who waits in Join is told what for: a host that cannot be reached, or one that
// is silent.
func TestR16JoinTellsWhatItWaitsFor(t *testing.T) {
	for want, host := range map[error]func(t *testing.T, path string){
		errHosted: func(t *testing.T, path string) {
			m, err := openMeeting(path)
			if err == nil {
				err = m.seize()
			}
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(m.close)
		},
		errSilent: func(t *testing.T, path string) {
			l, err := net.Listen("unix", path)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { l.Close() })
		},
	} {
		t.Run(want.Error(), func(t *testing.T) {
			checkLeaks(t)
			path := filepath.Join(t.TempDir(), "device.sock")
			host(t, path)
			ctx, cancel := context.WithTimeout(t.Context(), ample)
			defer cancel()
			var told error
			waiting := func(why error) { told = why; cancel() }
			_, err := Join(ctx, Config{Device: "stub", Path: path, Waiting: waiting, Log: slog.New(slog.DiscardHandler)})
			if !errors.Is(err, context.Canceled) || !errors.Is(told, want) {
				t.Errorf("%v: told %v", err, told)
			}
		})
	}
}

// A socket of somebody else is told as that, by its path and with what to do.
func TestR16SocketOfAStranger(t *testing.T) {
	const kind, protocol, mute = "of another kind", "of another protocol", "mute"
	for _, c := range []struct {
		name, network string
		want          error
	}{{kind, "unixgram", errStranger}, {protocol, "unix", errStranger}, {mute, "unix", errMute}} {
		t.Run(c.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "other.sock")
			answer := map[string]string{protocol: "220 mail.example.org ESMTP\r\n"}[c.name]
			defer strangerAt(t, c.network, path, answer).Close()
			ctx, cancel := context.WithTimeout(t.Context(), ample)
			defer cancel()
			waiting := func(why error) {
				if errors.Is(why, c.want) && strings.Contains(why.Error(), " at "+path+" ") {
					cancel()
				}
			}
			_, err := Join(ctx, Config{Device: "stub", Path: path, Waiting: waiting, Log: slog.New(slog.DiscardHandler)})
			if !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		})
	}
}

// strangerAt listens, says the same to everybody, and hangs up.
func strangerAt(t *testing.T, network, path, answer string) io.Closer {
	t.Helper()
	if network == "unixgram" {
		l, err := net.ListenUnixgram(network, &net.UnixAddr{Name: path, Net: network})
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	l, err := net.Listen(network, path)
	if err != nil {
		t.Fatal(err)
	}
	go func() { // ends with l
		for nc, err := l.Accept(); err == nil; nc, err = l.Accept() {
			_, _ = io.WriteString(nc, answer) // the client may be gone
			nc.Close()
		}
	}()
	return l
}

// A host that fails in a new way at each try fills neither the log nor the view.
func TestR16FailuresOfTheHostAreToldBoundedly(t *testing.T) {
	const tries = 1000
	told, log := 0, &strings.Builder{}
	o := owner{Coordinator: &Coordinator{
		conf: Config{Waiting: func(error) { told++ }}, log: slog.New(slog.NewTextHandler(log, nil)),
	}}
	for i := range tries {
		o.unreachable(fmt.Errorf("failure %d", i))
	}
	if lines := strings.Count(log.String(), "\n"); lines != told || told != bits.Len(tries) {
		t.Errorf("%d lines, told %d times, want %d", lines, told, bits.Len(tries))
	}
	log.Reset()
	o.member.failed = 0
	for range tries {
		o.silent(time.Now())
		o.member.failed++
	}
	if lines := strings.Count(log.String(), "\n"); lines != bits.Len(tries) {
		t.Errorf("%d lines of a host that is silent again and again, want %d", lines, bits.Len(tries))
	}
	o.member.hear(reset.Roster{})
	o.unreachable(errNobody)
	if told != bits.Len(tries)+1 {
		t.Error("the first failure after a host was there is not told")
	}
}

// A lock file that somebody removed is made anew by who takes over.
func TestR16LockFileRemoved(t *testing.T) {
	checkLeaks(t)
	path := filepath.Join(t.TempDir(), "device.sock")
	all := []*Coordinator{joinAt(t, path, "ib0"), joinAt(t, path, "ib1"), joinAt(t, path, "ib2")}
	if err := os.Remove(path + ".lock"); err != nil {
		t.Fatal(err)
	}
	for len(all) > 0 {
		at := theHost(t, all)
		all[at].Close()
		all = slices.Delete(all, at, at+1)
	}
	if _, err := os.Stat(path + ".lock"); err != nil {
		t.Error(err)
	}
}
