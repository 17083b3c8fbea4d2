package systemd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
)

// story runs a reporter in virtual time and returns what systemd receives, each line with its
// second.
func story(t *testing.T, watchdog, length time.Duration, s Service) (lines []string) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		s.Log = slog.New(slog.DiscardHandler)
		r := reporter{Service: s, watchdog: watchdog, send: func(state string) (bool, error) {
			lines = append(lines, fmt.Sprintf("%.1f %s", time.Since(start).Seconds(), strings.ReplaceAll(state, "\n", " ")))
			return true, nil
		}}
		ctx, cancel := context.WithTimeout(t.Context(), length)
		defer cancel()
		r.run(ctx)
	})
	return lines
}

func fine(context.Context) error { return nil }

func TestStory(t *testing.T) {
	began := time.Time{}
	status := func() string {
		if began.IsZero() {
			began = time.Now()
		}
		if time.Since(began) < 3*time.Second {
			return "ib0: waiting"
		}
		return "ib0: up"
	}
	got := story(t, 8*time.Second, 5500*time.Millisecond, Service{Started: fine, Alive: fine, Status: status})
	want := []string{
		"0.0 STATUS=starting", "0.0 READY=1 WATCHDOG=1", "0.0 STATUS=ib0: waiting", "2.0 WATCHDOG=1", "3.0 STATUS=ib0: up", "4.0 WATCHDOG=1",
		"5.5 STOPPING=1 STATUS=stopping",
	}
	if !slices.Equal(got, want) {
		t.Errorf("%q\nwant %q", got, want)
	}
}

// systemd is told that the service is ready only after clients are served and all answer, and
// without WatchdogSec= there is no WATCHDOG=1.
func TestReady(t *testing.T) {
	var asked int
	notYet := func(context.Context) error {
		if asked++; asked < 4 {
			return errors.New("not yet")
		}
		return nil
	}
	want := []string{"0.0 STATUS=starting", "3.0 READY=1", "3.0 STATUS=", "10.0 STOPPING=1 STATUS=stopping"}
	want = slices.Delete(want, 2, 3) // the status does not change
	for name, s := range map[string]Service{"started": {Started: notYet, Alive: fine}, "alive": {Started: fine, Alive: notYet}} {
		asked = 0
		s.Status = func() string { return "" }
		if got := story(t, 0, 10*time.Second, s); !slices.Equal(got, want) {
			t.Errorf("%s: %q\nwant %q", name, got, want)
		}
	}
}

// A service that hangs for less than WatchdogSec= is not killed, and one that hangs for longer is.
func TestHangs(t *testing.T) {
	const watchdog = 8 * time.Second
	for _, c := range []struct {
		hang   time.Duration
		killed bool
	}{{0, false}, {3 * time.Second, false}, {12 * time.Second, true}} {
		var since time.Time
		alive := func(ctx context.Context) error {
			if since.IsZero() {
				since = time.Now()
			}
			if at := time.Since(since); at < 5*time.Second || at > 5*time.Second+c.hang {
				return nil
			}
			select {
			case <-ctx.Done():
				return errors.New("interface ib0")
			case <-time.After(time.Until(since.Add(5*time.Second + c.hang))):
				return nil
			}
		}
		lines := story(t, watchdog, 30*time.Second, Service{Started: fine, Alive: alive, Status: func() string { return "" }})
		longest := longestSilence(t, lines)
		t.Logf("a hang of %s: at most %s between two answers", c.hang, longest)
		if killed := longest > watchdog; killed != c.killed {
			t.Errorf("a hang of %s: killed %v, want %v: %q", c.hang, killed, c.killed, lines)
		}
	}
}

// A service that answers reports that perWatchdog times per WatchdogSec= at least, although its answers
// take a moment. Otherwise it could not be late once.
func TestAnswersInTime(t *testing.T) {
	alive := func(context.Context) error { time.Sleep(time.Millisecond); return nil }
	for _, watchdog := range []time.Duration{4 * time.Second, 8 * time.Second, 30 * time.Second} {
		lines := story(t, watchdog, 5*watchdog, Service{Started: fine, Alive: alive, Status: func() string { return "" }})
		if longest := longestSilence(t, lines); longest > watchdog/perWatchdog {
			t.Errorf("WatchdogSec=%s: up to %s between two answers", watchdog, longest)
		}
	}
}

// longestSilence returns the longest time between two answers to the watchdog.
func longestSilence(t *testing.T, lines []string) (longest time.Duration) {
	t.Helper()
	var last float64
	for _, l := range lines {
		var at float64
		if _, err := fmt.Sscan(l, &at); err != nil {
			t.Fatal(err)
		}
		if strings.Contains(l, daemon.SdNotifyWatchdog) {
			longest, last = max(longest, time.Duration((at-last)*float64(time.Second)).Round(time.Millisecond)), at
		}
	}
	return longest
}

// Processes may succeed each other more quickly than each of them is asked: systemd measures WatchdogSec=
// from the last answer of any of them.
func TestSuccessorsInARow(t *testing.T) {
	const watchdog, life = 4 * time.Second, 700 * time.Millisecond
	s := Service{Started: fine, Alive: fine, Status: func() string { return "" }, Left: func() bool { return true }}
	lines := story(t, watchdog, life, s)
	if !slices.ContainsFunc(lines, func(l string) bool { return strings.Contains(l, daemon.SdNotifyWatchdog) }) {
		t.Errorf("a process that runs for %s reports that it is ready, but not that it is alive: %q", life, lines)
	}
}

// Without systemd, Run returns at once.
func TestWithoutSystemd(t *testing.T) {
	t.Setenv("NOTIFY_SOCKET", "")
	Run(t.Context(), Service{})
}

// With systemd's variables, its socket receives the notifications.
func TestSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "notify")
	l, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	t.Setenv("NOTIFY_SOCKET", path)
	t.Setenv("WATCHDOG_USEC", "40000")
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		Run(ctx, Service{Started: fine, Alive: fine, Status: func() string { return "fine" }, Log: slog.New(slog.DiscardHandler)})
	}()
	buf := make([]byte, 100)
	for _, want := range []string{"STATUS=starting", "READY=1\nWATCHDOG=1", "STATUS=fine", "WATCHDOG=1", "WATCHDOG=1"} {
		n, err := l.Read(buf)
		if err != nil || string(buf[:n]) != want {
			t.Errorf("%q, %v, want %q", buf[:n], err, want)
		}
	}
	cancel()
	for {
		if n, err := l.Read(buf); err != nil || strings.HasPrefix(string(buf[:n]), "STOPPING=1\n") {
			break
		}
	}
	<-ended
}

// A process that another one has succeeded leaves the end of the service to that one.
func TestSuccession(t *testing.T) {
	got := story(t, 0, 1500*time.Millisecond, Service{Started: fine, Alive: fine, Status: func() string { return "" }, Left: func() bool { return true }})
	if want := []string{"0.0 STATUS=starting", "0.0 READY=1"}; !slices.Equal(got, want) {
		t.Errorf("%q\nwant %q", got, want)
	}
	path := filepath.Join(t.TempDir(), "notify")
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	t.Setenv("NOTIFY_SOCKET", path)
	if err := Succeed(4711); err != nil {
		t.Fatal(err)
	}
	text := make([]byte, 64)
	if n, err := conn.Read(text); err != nil || string(text[:n]) != "MAINPID=4711\nWATCHDOG=1" {
		t.Errorf("%q, %v", text[:n], err)
	}
	t.Setenv("WATCHDOG_PID", "1")
	t.Setenv("WATCHDOG_USEC", "30000000")
	handed := Export()
	if handed != (State{path, "30000000"}) {
		t.Errorf("%+v", handed)
	}
	t.Setenv("WATCHDOG_USEC", "") // a process that systemd has not started
	t.Setenv("NOTIFY_SOCKET", "")
	if err := handed.Import(); err != nil {
		t.Fatal(err)
	}
	if d, err := daemon.SdWatchdogEnabled(false); err != nil || d != 30*time.Second || os.Getenv("NOTIFY_SOCKET") != path {
		t.Errorf("the watchdog's interval is %v, %v; the socket %q", d, err, os.Getenv("NOTIFY_SOCKET"))
	}
	if err := (State{"/elsewhere", "1"}).Import(); err != nil || os.Getenv("NOTIFY_SOCKET") != path {
		t.Errorf("a service of its own reports to %s, %v", os.Getenv("NOTIFY_SOCKET"), err)
	}
}
