package e2e

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/creack/pty"

	"ipoibd/link/linktest/nstest"
)

// topRecord selects the file for the recording of the fault storm; `make top-picture` draws it.
var topRecord = flag.String("top.record", "", "write what ipoibd top shows in the fault storm to this file (asciicast v2)")

// Size of the terminal.
const columns, rows = 100, 30

// screen is a terminal in which a program runs. It records the output with its times.
type screen struct {
	file *os.File
	done chan error // result of the program

	mu     sync.Mutex
	start  time.Time
	output strings.Builder
	frames [][]any // as in asciicast v2
}

// topScreen starts ipoibd top in a terminal of its own.
func (h *host) topScreen(env ...string) *screen {
	h.tb.Helper()
	cmd := h.Command(os.Getenv(daemonEnv), "top", "--control", h.daemon.control, "--interval", "250ms")
	cmd.Env = append(os.Environ(), append([]string{"TERM=linux", "COLORTERM="}, env...)...)
	file, err := pty.StartWithSize(cmd, &pty.Winsize{Cols: columns, Rows: rows})
	if err != nil {
		h.tb.Fatal(err)
	}
	s := &screen{file: file, done: make(chan error, 1), start: time.Now()}
	go s.read()
	go func() { s.done <- cmd.Wait() }()
	h.tb.Cleanup(func() { _ = cmd.Process.Kill(); file.Close() })
	return s
}

// read records the output until the program has closed the terminal.
func (s *screen) read() {
	buf := make([]byte, 64<<10)
	for {
		n, err := s.file.Read(buf)
		s.mu.Lock()
		s.output.Write(buf[:n])
		s.frames = append(s.frames, []any{time.Since(s.start).Seconds(), "o", string(buf[:n])})
		s.mu.Unlock()
		if err != nil {
			return
		}
	}
}

// queries are requests to a terminal that the emulators print, because they do not know them.
var queries = regexp.MustCompile(`\x1b\[\?\d+\$p|\x1b\[[=>][0-9;]*[a-z]`)

// text returns the whole output so far.
func (s *screen) text() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.output.String()
}

// emulate prints what a terminal shows after the output on standard input. pyte expects an apostrophe instead of the
// grave accent at the end of HPA (ECMA-48, 8.3.57), which selects a column.
const emulate = `
import pyte, sys
pyte.ByteStream.csi = {**pyte.ByteStream.csi, "\x60": "cursor_to_column"}
screen = pyte.Screen(int(sys.argv[1]), int(sys.argv[2]))
pyte.ByteStream(screen).feed(sys.stdin.buffer.read())
print("\n".join(screen.display))
`

// shown returns the lines on the screen, by an independent emulator of terminals.
func (s *screen) shown(tb testing.TB) string {
	tb.Helper()
	cmd := exec.Command(python, "-c", emulate, strconv.Itoa(columns), strconv.Itoa(rows))
	cmd.Stdin = strings.NewReader(queries.ReplaceAllString(s.text(), ""))
	out, err := cmd.Output()
	if err != nil {
		tb.Fatalf("emulate a terminal: %v", err)
	}
	return string(out)
}

// waitShows waits until the screen matches.
func (s *screen) waitShows(tb testing.TB, want string) {
	tb.Helper()
	pattern, last := regexp.MustCompile(want), ""
	defer func() {
		if tb.Failed() {
			tb.Log(last)
		}
	}()
	eventually(tb, startLimit, "ipoibd top shows "+want, func() bool { last = s.shown(tb); return pattern.MatchString(last) })
}

func (s *screen) press(tb testing.TB, keys string) {
	tb.Helper()
	if _, err := s.file.WriteString(keys); err != nil {
		tb.Fatal(err)
	}
}

// save writes the recording in the format of asciinema, version 2.
func (s *screen) save(tb testing.TB, path string) {
	tb.Helper()
	file, err := os.Create(path)
	if err != nil {
		tb.Fatal(err)
	}
	defer file.Close()
	lines := json.NewEncoder(file)
	s.mu.Lock()
	defer s.mu.Unlock()
	err = lines.Encode(map[string]any{"version": 2, "width": columns, "height": rows, "title": "ipoibd top under a fault storm"})
	for _, f := range s.frames {
		f[2] = queries.ReplaceAllString(f[2].(string), "")
		err = errors.Join(err, lines.Encode(f))
	}
	if err != nil {
		tb.Fatal(err)
	}
}

var colour = regexp.MustCompile(`\x1b\[[0-9;]*(3[0-7]|9[0-7]|38;)[0-9;]*m`)

// ipoibd top shows each recovery of a storm of faults, continues after a restart of the daemon,
// follows the size of the window, and leaves the terminal as it was.
func TestTopUnderAFaultStorm(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	p := newFaultyPair(t)
	s := p.faulty.topScreen()
	s.waitShows(t, `› ib0 +up .* [0-9.]+ M`) // the stream's throughput
	plain := p.outside.topScreen("NO_COLOR=1")
	plain.waitShows(t, "› "+ifName)

	kinds := []string{"send_error_sqe", "recv_error_err", "cq_error", "send_flush_err", "device_fatal", "swallowed_send", "cq_overrun"}
	for i := range form(2*len(kinds), 20*len(kinds)) {
		_ = p.faulty.daemon.post("/v1/fault", faultRequest{Kind: kinds[i%len(kinds)]}) // refused while the device is away
		time.Sleep(500 * time.Millisecond)
	}
	p.faulty.undoFaults()
	p.faulty.waitWell(t)
	s.waitShows(t, `recovered (reset|recreate)_qp `)
	s.waitShows(t, `recoveries [1-9].* the last by `)
	if *topRecord != "" {
		s.save(t, *topRecord)
	}

	p.faulty.daemon.kill()
	s.waitShows(t, "no answer, retrying: .*no daemon answers")
	p.resume()
	s.waitShows(t, fmt.Sprintf("pid %d,", p.faulty.daemon.cmd.Process.Pid))
	if err := pty.Setsize(s.file, &pty.Winsize{Cols: columns, Rows: 8}); err != nil {
		t.Fatal(err)
	}
	s.waitShows(t, `\n +\n(.*\n){5}q quit`) // the frame is at the top of the emulator's larger screen

	for name, c := range map[string]struct {
		*screen
		coloured bool
	}{"top": {s, true}, "top with NO_COLOR": {plain, false}} {
		if got := colour.MatchString(c.text()); got != c.coloured {
			t.Errorf("%s: coloured %v", name, got)
		}
		c.press(t, "q")
		select {
		case err := <-c.done:
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
		case <-time.After(startLimit):
			t.Errorf("%s does not quit", name)
		}
		eventually(t, startLimit, name+" leaves the alternate screen", func() bool {
			return strings.Contains(c.text(), "\x1b[?1049l")
		})
	}
}

// Without a terminal or a daemon, ipoibd top says what to do.
func TestTopNeedsATerminalAndADaemon(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	h := newHosts(t, 1)[0]
	out, err := h.Command(os.Getenv(daemonEnv), "top").CombinedOutput()
	if err == nil || !strings.Contains(string(out), "use 'ipoibd status'") {
		t.Errorf("%v: %s", err, out)
	}
	cmd := h.Command(os.Getenv(daemonEnv), "top", "--control", h.dir+"/none")
	file, err := pty.Start(cmd)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	buf := make([]byte, 4096)
	n, _ := file.Read(buf)
	if err := cmd.Wait(); err == nil || !strings.Contains(string(buf[:n]), "no daemon answers") {
		t.Errorf("%v: %q", err, buf[:n])
	}
}
