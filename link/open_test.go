package link_test

import (
	"bufio"
	"context"
	"errors"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"ipoibd/link"
	"ipoibd/link/linktest/nstest"
)

// holdEnv makes the test binary a process that holds an interface until its input ends. It
// prints when it holds the interface and when the interface is no longer present.
const holdEnv = "TEST_IPOIBD_LINK_TEST_HOLD"

func TestMain(m *testing.M) {
	if name := os.Getenv(attachEnv); name != "" {
		attachAndExit(name)
	}
	if name := os.Getenv(grabEnv); name != "" {
		grab(name)
		return
	}
	if prefix := os.Getenv(followEnv); prefix != "" {
		follow(prefix)
		return
	}
	if name := os.Getenv(churnEnv); name != "" {
		churn(name)
		return
	}
	name := os.Getenv(holdEnv)
	if name == "" {
		os.Exit(m.Run())
	}
	tap, _, err := link.Open(spec(name))
	if err == nil {
		err = tap.SetCarrier(true)
	}
	if err != nil {
		os.Stdout.WriteString(err.Error() + "\n")
		os.Exit(1)
	}
	os.Stdout.WriteString("holding\n")
	go sayAbsent(tap)
	_, _ = os.Stdin.Read(make([]byte, 1))
}

func sayAbsent(tap *link.TAP) {
	states, err := tap.Watch(context.Background())
	if err != nil {
		os.Stdout.WriteString(err.Error() + "\n")
	}
	for s := range states {
		if !s.Present {
			os.Stdout.WriteString("absent\n")
		}
	}
}

// holdElsewhere starts a process that holds the interface, through another program if one is
// given.
func holdElsewhere(t *testing.T, name string, by ...string) (*exec.Cmd, *bufio.Reader) {
	t.Helper()
	exe, err := os.Executable()
	must(t, err)
	args := append(by, exe)
	cmd := exec.CommandContext(t.Context(), args[0], args[1:]...)
	cmd.Env = append(os.Environ(), holdEnv+"="+name)
	_, err = cmd.StdinPipe()
	must(t, err)
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	says := bufio.NewReader(out)
	hears(t, says, "holding")
	return cmd, says
}

// hears waits for a line of the other process.
func hears(t *testing.T, says *bufio.Reader, want string) {
	t.Helper()
	if line, err := says.ReadString('\n'); line != want+"\n" {
		t.Fatalf("the other process says %q, %v; want %q", line, err, want)
	}
}

func runIP(t *testing.T, args ...string) (string, error) {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "ip", args...).CombinedOutput()
	return string(out), err
}

// While a process holds the interface, another cannot open it. When the first is killed, the
// other adopts the interface immediately and turns its carrier off.
func TestOwnedByAnotherProcess(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	other, _ := holdElsewhere(t, "ib0")
	must(t, netlink.LinkSetUp(&netlink.Device{LinkAttrs: netlink.LinkAttrs{Name: "ib0"}}))
	_, _, err := link.Open(spec("ib0"))
	var owned *link.OwnedError
	if !errors.As(err, &owned) || !errors.Is(err, link.ErrOwned) || owned.PID != other.Process.Pid {
		t.Errorf("Open = %v, want ErrOwned by process %d", err, other.Process.Pid)
	}
	if err := link.Delete("ib0"); !errors.Is(err, link.ErrOwned) {
		t.Errorf("Delete = %v, want ErrOwned", err)
	}
	must(t, other.Process.Signal(syscall.SIGKILL))
	_ = other.Wait()
	tap, adopted := openTAP(t, spec("ib0"))
	if !adopted {
		t.Error("created the interface instead of adopting it")
	}
	s, err := tap.State()
	if err != nil || !s.Up || s.Carrier {
		t.Errorf("state = %+v, %v; want it up without carrier", s, err)
	}
}

// Open also detects the queue of a process that does not use this package.
func TestQueueOfAStranger(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	tap, _ := openTAP(t, spec("ib0"))
	must(t, tap.Close())
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC, 0)
	must(t, err)
	req, err := unix.NewIfreq("ib0")
	must(t, err)
	req.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI | unix.IFF_MULTI_QUEUE)
	must(t, unix.IoctlIfreq(fd, unix.TUNSETIFF, req))
	_, _, err = link.Open(spec("ib0"))
	must(t, unix.Close(fd))
	if !errors.Is(err, link.ErrOwned) {
		t.Errorf("Open = %v, want ErrOwned", err)
	}
}

func TestNameTaken(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	for _, c := range []struct{ name, says string }{
		{"bridge0", "is a bridge"},
		{"bridge1", "is a bridge, not a multi-queue TAP"},
		{"tap0", "is a tuntap"},
		{"tun1", "not a multi-queue TAP"},
		{"tap1", "not a multi-queue TAP"},
	} {
		kind := strings.TrimRight(c.name, "01")
		args := []string{"link", "add", c.name, "type", kind}
		if kind != "bridge" {
			args = []string{"tuntap", "add", "dev", c.name, "mode", kind}
		}
		out, err := runIP(t, args...)
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		if strings.HasSuffix(c.name, "1") {
			_, err = runIP(t, "link", "set", c.name, "alias", link.AliasPrefix)
			must(t, err)
		}
		for what, call := range map[string]func() error{
			"Open":   func() error { _, _, err := link.Open(spec(c.name)); return err },
			"Delete": func() error { return link.Delete(c.name) },
		} {
			if err := call(); !errors.Is(err, link.ErrNameTaken) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%s(%s) = %v, want ErrNameTaken that says %q", what, c.name, err, c.says)
			}
		}
	}
}

func TestDelete(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	if err := link.Delete("ib0"); !errors.Is(err, link.ErrNotFound) {
		t.Errorf("Delete = %v, want ErrNotFound", err)
	}
	tap, _ := openTAP(t, spec("ib0"))
	if err := link.Delete("ib0"); !errors.Is(err, link.ErrOwned) {
		t.Errorf("Delete of an open interface = %v, want ErrOwned", err)
	}
	must(t, tap.Close())
	must(t, link.Delete("ib0"))
	if _, err := netlink.LinkByName("ib0"); err == nil {
		t.Error("the interface still exists")
	}
}

// Without the device node or without capabilities, the error of Open says what to do.
func TestOpenSaysWhatIsMissing(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	empty := t.TempDir()
	must(t, unix.Mount(empty, "/dev/net", "", unix.MS_BIND, ""))
	if _, _, err := link.Open(spec("ib0")); !errors.Is(err, link.ErrNoTun) || !strings.Contains(err.Error(), "modprobe tun") {
		t.Errorf("Open = %v, want ErrNoTun", err)
	}
	must(t, unix.Unmount("/dev/net", 0))
	exe, err := os.Executable()
	must(t, err)
	cmd := exec.CommandContext(t.Context(), "setpriv", "--bounding-set=-all", "--inh-caps=-all", exe)
	cmd.Env = append(os.Environ(), holdEnv+"=ib0")
	out, err := cmd.CombinedOutput()
	if err == nil || !strings.Contains(string(out), link.ErrPermission.Error()) {
		t.Errorf("without capabilities: %v, %s; want %q", err, out, link.ErrPermission)
	}
}
