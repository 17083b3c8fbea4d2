package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// The daemon gets the flags, the output gets the file, and standard error gets the totals.
func TestCaptureCommand(t *testing.T) {
	f := newFake()
	path, _ := serve(t, f)
	file := filepath.Join(t.TempDir(), "a.pcapng")
	out, errOut, err := ipoibd(t, "capture", "--control", path, "--level", "roce,ethernet", "--count", "5", "--duration", "1500ms",
		"--snaplen", "100", "--direction", "in", "--bpf", "1,6 0 0 1", "--write", file)
	if err != nil || out != "" || errOut != "3 packets captured, 2 lost\n" {
		t.Errorf("output %q, %q, %v", out, errOut, err)
	}
	request := "{Interface:ib0 Levels:[roce ethernet] Snaplen:100 Direction:in Count:5 Duration:1.5 BPF:1,6 0 0 1 Filter:}"
	if got := f.taken(); len(got) != 1 || got[0] != "capture "+request {
		t.Errorf("request %q, want %q", got, request)
	}
	if text, err := os.ReadFile(file); err != nil || string(text) != "file of "+request {
		t.Errorf("file %q, %v", text, err)
	}
	if out, _, err := ipoibd(t, "capture", "--control", path); err != nil || !strings.HasPrefix(out, "file of {Interface:ib0 Levels:[ipoib]") {
		t.Errorf("output %q, %v", out, err)
	}
}

// A capture never goes into a file of another user, nor through a link: a new file takes its place, which only
// its owner can read. A pipe is written to.
func TestCaptureReplacesTheFile(t *testing.T) {
	path, _ := serve(t, newFake())
	dir := t.TempDir()
	target, link, foreign, pipe := filepath.Join(dir, "target"), filepath.Join(dir, "link"), filepath.Join(dir, "foreign"), filepath.Join(dir, "pipe")
	for _, f := range []string{target, foreign} {
		if err := os.WriteFile(f, []byte("old"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	held, err := os.Open(foreign) // as by a user who has created it
	if err := errors.Join(err, os.Chmod(foreign, 0o666), os.Symlink(target, link), syscall.Mkfifo(pipe, 0o600)); err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	for _, file := range []string{link, foreign} {
		if _, _, err := ipoibd(t, "capture", "--control", path, "--write", file); err != nil {
			t.Fatal(err)
		}
		info, err := os.Lstat(file)
		text, readErr := os.ReadFile(file)
		if err := errors.Join(err, readErr); err != nil || info.Mode() != 0o600 || !strings.HasPrefix(string(text), "file of") {
			t.Errorf("%s: %v, %q, %v", file, info.Mode(), text, err)
		}
	}
	for what, read := range map[string]func() ([]byte, error){
		"the target of the link": func() ([]byte, error) { return os.ReadFile(target) },
		"the other user's file":  func() ([]byte, error) { return io.ReadAll(held) },
	} {
		if text, err := read(); err != nil || string(text) != "old" {
			t.Errorf("%s has %q, %v", what, text, err)
		}
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 4 {
		t.Errorf("left: %v, %v", left, err)
	}
	got := make(chan string)
	go func() {
		text, _ := os.ReadFile(pipe)
		got <- string(text)
	}()
	if _, _, err := ipoibd(t, "capture", "--control", path, "--write", pipe); err != nil {
		t.Fatal(err)
	}
	if text := <-got; !strings.HasPrefix(text, "file of") {
		t.Errorf("the pipe got %q", text)
	}
	if os.Geteuid() == 0 {
		if err := os.Chown(pipe, 65534, 65534); err != nil {
			t.Fatal(err)
		}
		go func() { _, _ = os.ReadFile(pipe) }()
		if _, _, err := ipoibd(t, "capture", "--control", path, "--write", pipe); err == nil || !strings.Contains(err.Error(), "belongs to another user") {
			t.Errorf("another user's pipe: %v", err)
		}
	}
}

// A descriptor that the caller has passed is written to, whoever owns the pipe behind it, also through a link such
// as /dev/stdout, which stays.
func TestCaptureToADescriptor(t *testing.T) {
	path, _ := serve(t, newFake())
	link := filepath.Join(t.TempDir(), "stdout")
	for _, through := range []bool{false, true} {
		out, in, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		if os.Geteuid() == 0 {
			if err := in.Chown(65534, 65534); err != nil {
				t.Fatal(err)
			}
		}
		file := fmt.Sprintf("/proc/self/fd/%d", in.Fd())
		if through {
			if err := os.Symlink(file, link); err != nil {
				t.Fatal(err)
			}
			file = link
		}
		if _, _, err := ipoibd(t, "capture", "--control", path, "--write", file); err != nil {
			t.Errorf("%s: %v", file, err)
		}
		in.Close()
		if text, err := io.ReadAll(out); err != nil || !strings.HasPrefix(string(text), "file of") {
			t.Errorf("%s: the pipe got %q, %v", file, text, err)
		}
		out.Close()
	}
	if info, err := os.Lstat(link); err != nil || info.Mode().Type() != os.ModeSymlink {
		t.Errorf("the link has become %v, %v", info.Mode(), err)
	}
	if os.Geteuid() != 0 {
		return
	}
	// Another user's link to a descriptor of this program is replaced.
	out, in, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	if err := errors.Join(os.Remove(link), os.Symlink(fmt.Sprintf("/proc/self/fd/%d", in.Fd()), link), os.Lchown(link, 65534, 65534)); err != nil {
		t.Fatal(err)
	}
	if _, _, err := ipoibd(t, "capture", "--control", path, "--write", link); err != nil {
		t.Error(err)
	}
	in.Close()
	if text, err := io.ReadAll(out); err != nil || len(text) > 0 {
		t.Errorf("through another user's link: %q, %v", text, err)
	}
	if info, err := os.Lstat(link); err != nil || !info.Mode().IsRegular() {
		t.Errorf("another user's link has become %v, %v", info.Mode(), err)
	}
}

// A mistake is reported before anything is asked of the daemon, and a refusal leaves the file
// that is there.
func TestCaptureMistakes(t *testing.T) {
	f := newFake()
	path, _ := serve(t, f)
	file := filepath.Join(t.TempDir(), "old")
	if err := os.WriteFile(file, []byte("old"), 0o600); err != nil {
		t.Fatal(err)
	}
	for want, args := range map[string][]string{
		`unknown level "udp"`:                {"--level", "udp"},
		"is not between 64 and 262144":       {"--snaplen", "10"},
		`unknown direction "up"`:             {"--direction", "up"},
		"is not a BPF program":               {"--bpf", "icmp"},
		"the duration is negative":           {"--duration", "-1s"},
		"capture takes no argument":          {"icmp"},
		`no interface "ib7"`:                 {"--interface", "ib7"},
		"tcpdump cannot compile the filter":  {"--filter", "what"},
		"none of the others can be; [bpf fi": {"--filter", "icmp", "--bpf", "1,6 0 0 1"},
	} {
		_, _, err := ipoibd(t, append([]string{"capture", "--control", path, "--write", file}, args...)...)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: error %v, want %s", args, err, want)
		}
	}
	f.change(func() { f.err = fmt.Errorf("the interface is gone") })
	if _, _, err := ipoibd(t, "capture", "--control", filepath.Join(t.TempDir(), "none"), "--write", file); err == nil {
		t.Error("captured without a daemon")
	}
	if got := f.taken(); len(got) != 0 {
		t.Errorf("the daemon was asked %q", got)
	}
	if text, err := os.ReadFile(file); err != nil || string(text) != "old" {
		t.Errorf("the old file has %q, %v", text, err)
	}
	t.Setenv("PATH", t.TempDir())
	if _, _, err := ipoibd(t, "capture", "--control", path, "--filter", "icmp"); err == nil || !strings.Contains(err.Error(), "needs tcpdump, which is not installed") {
		t.Errorf("without tcpdump: %v", err)
	}
}
