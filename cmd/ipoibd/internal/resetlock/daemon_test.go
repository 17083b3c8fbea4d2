package resetlock

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// ample bounds every wait in real time. It is tens of times the usual duration.
const ample = 20 * time.Second

// shared is a device that daemons share, each in a process of its own.
type shared struct {
	*testing.T
	conf childConfig // of each daemon, unless it has another
}

func newShared(t *testing.T) *shared {
	checkLeaks(t)
	dir := t.TempDir()
	return &shared{t, childConfig{
		Dir: filepath.Join(dir, "locks"), Device: filepath.Join(dir, "device"), Grace: ample, Verb: 20 * time.Millisecond,
	}}
}

// daemon is one of them. Its goroutine reads what it writes until it ends.
type daemon struct {
	*testing.T
	name  string
	cmd   *exec.Cmd
	stdin io.WriteCloser
	lines chan line
	past  []line // taken from lines
	errs  *bytes.Buffer
}

// line is what a daemon wrote, and when, by the clock of all.
type line struct {
	at   time.Duration
	text string
}

// run starts a daemon; changes are to its configuration and process.
func (s *shared) run(name string, changes ...func(*childConfig, *syscall.SysProcAttr)) *daemon {
	s.Helper()
	conf, attr := s.conf, &syscall.SysProcAttr{}
	conf.Name = name
	for _, change := range changes {
		change(&conf, attr)
	}
	d := &daemon{T: s.T, name: name, lines: make(chan line, 1000), errs: &bytes.Buffer{}}
	d.start(conf, attr)
	s.Cleanup(d.end)
	return d
}

// join starts a daemon and waits until it has the device open.
func (s *shared) join(name string, changes ...func(*childConfig, *syscall.SysProcAttr)) *daemon {
	s.Helper()
	d := s.run(name, changes...)
	d.await("open")
	return d
}

func (d *daemon) start(conf childConfig, attr *syscall.SysProcAttr) {
	d.Helper()
	text, err := json.Marshal(conf)
	d.must(err)
	d.cmd = exec.Command(os.Args[0])
	d.cmd.Env = append(os.Environ(), childEnv+"="+string(text))
	d.cmd.SysProcAttr, d.cmd.Stderr = attr, d.errs
	d.stdin, err = d.cmd.StdinPipe()
	d.must(err)
	out, err := d.cmd.StdoutPipe()
	d.must(err)
	d.must(d.cmd.Start())
	go d.read(out)
}

func (d *daemon) must(err error) {
	d.Helper()
	if err != nil {
		d.Fatal(err)
	}
}

func (d *daemon) read(out io.Reader) {
	defer close(d.lines)
	in := bufio.NewScanner(out)
	for in.Scan() {
		stamp, text, _ := strings.Cut(in.Text(), " ")
		at, err := strconv.ParseInt(stamp, 10, 64)
		if err != nil {
			text = "wrong: " + in.Text()
		}
		d.lines <- line{time.Duration(at), strings.TrimSpace(text)}
	}
}

// await returns the next line that is one of texts, or begins with it and a space.
func (d *daemon) await(texts ...string) line {
	d.Helper()
	timeout := time.After(ample)
	for {
		select {
		case l, ok := <-d.lines:
			if !ok {
				d.Fatalf("%s ended before %q:\n%s", d.name, texts, d.story())
			}
			d.past = append(d.past, l)
			for _, text := range texts {
				if l.text == text || strings.HasPrefix(l.text, text+" ") {
					return l
				}
			}
		case <-timeout:
			d.Fatalf("%s: no %q within %v:\n%s", d.name, texts, ample, d.story())
		}
	}
}

// story is what the daemon wrote so far.
func (d *daemon) story() string {
	var b strings.Builder
	for _, l := range d.past {
		fmt.Fprintf(&b, "%v %s\n", l.at, l.text)
	}
	return b.String()
}

func (d *daemon) order(text string) {
	d.Helper()
	_, err := io.WriteString(d.stdin, text+"\n")
	d.must(err)
}

func (d *daemon) signal(sig syscall.Signal) {
	d.Helper()
	d.must(d.cmd.Process.Signal(sig))
}

// stop stops the daemon, and returns when it does nothing any more.
func (d *daemon) stop() {
	d.Helper()
	d.signal(syscall.SIGSTOP)
	d.must(unix.Waitid(unix.P_PID, d.cmd.Process.Pid, nil, unix.WSTOPPED|unix.WNOWAIT, nil))
}

// leave makes the daemon end in good order.
func (d *daemon) leave() {
	d.Helper()
	d.order("leave")
	d.await("left")
}

// count returns how many lines there have been so far.
func (d *daemon) count(text string) (n int) {
	for _, l := range d.past {
		if l.text == text || strings.HasPrefix(l.text, text+" ") {
			n++
		}
	}
	return n
}

// awaitEnd waits until the daemon has ended.
func (d *daemon) awaitEnd() {
	for l := range d.lines {
		d.past = append(d.past, l)
	}
	_ = d.cmd.Wait() // the state tells
}

// end kills what has not ended, and complains of what went wrong.
func (d *daemon) end() {
	_ = d.cmd.Process.Kill() // it may have ended
	d.awaitEnd()
	if d.count("wrong:") > 0 {
		d.Errorf("%s went wrong:\n%s", d.name, d.story())
	}
	if d.Failed() {
		d.Logf("%s:\n%s%s", d.name, d.story(), d.errs)
	}
}

// last returns when the daemon wrote a line for the last time.
func (d *daemon) last(text string) (at time.Duration) {
	for _, l := range d.past {
		if l.text == text {
			at = l.at
		}
	}
	return at
}
