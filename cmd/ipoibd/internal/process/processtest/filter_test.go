package processtest

import (
	"errors"
	"io"
	"maps"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

const childEnv = "TEST_IPOIBD_PROCESSTEST_CHILD"

// deeds are what a process does under the filter, on a new thread. The fatal ones end
// the process.
var deeds = []struct {
	name  string
	fatal bool
	do    func() error
}{
	{"opens a file", true, func() error { _, err := os.Open("/etc/hostname"); return err }},
	{"opens a file that does not exist", true, func() error { _, err := os.Open("/nowhere"); return err }},
	{"opens a file by a link in proc", true, func() error { _, err := os.Open("/proc/self/exe"); return err }},
	{"opens a file by a relative path", true, func() error { _, err := os.Open("doc.go"); return err }},
	{"opens a file by another call", true, func() error {
		_, err := unix.Openat2(unix.AT_FDCWD, "/etc/hostname", &unix.OpenHow{})
		return err
	}},
	{"opens a file in a folder that is open", true, func() error { _, err := etc.Open("hostname"); return err }},
	{"asks the kernel", false, ask},
	{"creates a file", true, func() error { _, err := os.Create("/dev/null"); return err }},
	{"starts a program", true, func() error { return exec.Command("/bin/true").Run() }},
	{"talks to itself", false, talk},
	{"does nothing", false, func() error { return nil }},
}

// etc was opened before the filter was there.
var etc, _ = os.OpenRoot("/etc")

// talk uses what a device reset uses: memory, threads, sockets.
func talk() error {
	conn, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		return err
	}
	defer conn.Close()
	if _, err := conn.WriteTo(make([]byte, 1<<10), conn.LocalAddr()); err != nil {
		return err
	}
	_, err = io.ReadFull(conn, make([]byte, 1<<10))
	runtime.GC()
	return err
}

// ask opens files without a disk, by path and relative to a folder, and one that does not
// exist.
func ask() error {
	for _, open := range []func() (*os.File, error){
		func() (*os.File, error) { return os.Open("/proc/self/status") },
		func() (*os.File, error) { return os.Open("/proc/thread-self/ns/net") },
		func() (*os.File, error) { return os.OpenInRoot("/sys", "kernel") },
		func() (*os.File, error) { return os.Open("/sys/nowhere/at-all") },
	} {
		f, err := open()
		switch {
		case err == nil:
			f.Close()
		case !errors.Is(err, os.ErrNotExist):
			return err
		}
	}
	return nil
}

// asked are the paths that ask opens, and how often.
var asked = map[string]int{
	"/proc/self/status": 1, "/proc/thread-self/ns/net": 1, "/sys": 1, "/sys/kernel": 1, "/sys/nowhere/at-all": 1,
}

func TestR17Filter(t *testing.T) {
	if name := os.Getenv(childEnv); name != "" {
		child(t, name)
		return
	}
	for _, d := range deeds {
		t.Run("R17/"+d.name, func(t *testing.T) {
			cmd := exec.Command("/proc/self/exe", "-test.run=^TestR17Filter$", "-test.count=1")
			cmd.Env = append(os.Environ(), childEnv+"="+d.name)
			out, err := cmd.CombinedOutput()
			killed := strings.Contains(string(out), "SIGSYS: bad system call")
			if killed != d.fatal || (err != nil) != d.fatal {
				t.Errorf("killed: %t, want %t; ended with %v:\n%s", killed, d.fatal, err, out)
			}
			if d.fatal && !strings.Contains(string(out), "processtest.init") {
				t.Errorf("the stack of the thread is missing:\n%s", out)
			}
		})
	}
}

func child(t *testing.T, name string) {
	guard, err := DenyFiles()
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range deeds {
		if d.name == name {
			done := make(chan error)
			go func() {
				runtime.LockOSThread() // never unlocked, so that the thread is new and ends with the goroutine
				done <- d.do()
			}()
			if err := <-done; err != nil {
				t.Fatal(err)
			}
			want := map[string]int{}
			if d.name == "asks the kernel" {
				want = asked
			}
			if got := guard.Opened(); !maps.Equal(got, want) {
				t.Errorf("opened %v, want %v", got, want)
			}
		}
	}
}

func TestMajorFaults(t *testing.T) {
	before, err := MajorFaults()
	if err != nil {
		t.Fatal(err)
	}
	after, err := MajorFaults()
	if err != nil || after < before {
		t.Errorf("%d, then %d, %v", before, after, err)
	}
}
