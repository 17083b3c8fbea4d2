package link_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"ipoibd/link"
	"ipoibd/link/linktest/nstest"
)

// attachEnv makes the test binary a process that attaches a queue to the interface and
// exits with the kernel's error as its status.
const attachEnv = "TEST_IPOIBD_LINK_TEST_ATTACH"

// nobody is a user and a group without any privilege.
const nobody = 65534

// openTun opens a queue that is not attached yet.
func openTun() (fd int, err error) {
	return unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
}

// attach attaches a queue to an interface as any program may try to.
func attach(fd int, name string) error {
	req, err := unix.NewIfreq(name)
	if err != nil {
		return err
	}
	req.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI | unix.IFF_MULTI_QUEUE)
	return unix.IoctlIfreq(fd, unix.TUNSETIFF, req)
}

// attachAndExit opens the device node, drops all privileges and then attaches, so the
// mode of the node, 0666 on most systems, does not matter. In a user namespace without
// another user the kernel refuses to change the user, with EINVAL.
func attachAndExit(name string) {
	fd, err := openTun()
	if err == nil {
		err = errors.Join(syscall.Setgroups(nil), syscall.Setresgid(nobody, nobody, nobody), syscall.Setresuid(nobody, nobody, nobody))
	}
	if err == nil {
		err = attach(fd, name)
	}
	var errno unix.Errno
	if errors.As(err, &errno) {
		os.Exit(int(errno))
	}
	os.Exit(0)
}

// attachAsNobody returns the error that the kernel returns to a process without
// privileges which attaches a queue.
func attachAsNobody(t *testing.T, name string) error {
	t.Helper()
	exe, err := os.Executable()
	must(t, err)
	cmd := exec.CommandContext(t.Context(), exe)
	cmd.Env = append(os.Environ(), attachEnv+"="+name)
	var exit *exec.ExitError
	switch err := cmd.Run(); {
	case err == nil:
		return nil
	case errors.As(err, &exit):
		return unix.Errno(exit.ExitCode())
	default:
		t.Fatal(err)
		return nil
	}
}

// requireOwned checks that ib0 has an owner, which would read -1 otherwise, and that
// another user may not attach to it.
func requireOwned(t *testing.T, when string) {
	t.Helper()
	for file, want := range map[string]int{"owner": os.Geteuid(), "group": os.Getegid()} {
		text, err := os.ReadFile("/sys/class/net/ib0/" + file)
		must(t, err)
		if got := strings.TrimSpace(string(text)); got != fmt.Sprint(want) {
			t.Errorf("%s: %s of ib0 is %s, want %d", when, file, got, want)
		}
	}
	switch err := attachAsNobody(t, "ib0"); {
	case errors.Is(err, unix.EINVAL):
		t.Logf("%s: this user namespace has no user %d, so only sysfs was checked", when, nobody)
	case !errors.Is(err, unix.EPERM):
		t.Errorf("%s: attach as user %d = %v, want EPERM", when, nobody, err)
	}
}

// Another user may not attach to the interface, whether a process holds it or not.
func TestInterfaceBelongsToItsUser(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	tap, _ := openTAP(t, spec("ib0"))
	requireOwned(t, "held")
	must(t, tap.Close())
	requireOwned(t, "left")
}

// An interface without an owner, as an earlier version created it, gets an owner when it
// is adopted.
func TestAdoptionSetsTheOwner(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	for _, args := range []string{"tuntap add dev ib0 mode tap multi_queue", "link set ib0 alias " + link.AliasPrefix} {
		out, err := runIP(t, strings.Fields(args)...)
		if err != nil {
			t.Fatalf("ip %s: %v: %s", args, err, out)
		}
	}
	if _, adopted := openTAP(t, spec("ib0")); !adopted {
		t.Fatal("not adopted")
	}
	requireOwned(t, "adopted")
}

// A user who binds a name in the abstract namespace of UNIX sockets, as any user may,
// does not keep a daemon from its interface.
func TestNoOtherUserCanTakeTheLock(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	must(t, err)
	defer unix.Close(fd)
	must(t, unix.Bind(fd, &unix.SockaddrUnix{Name: "@ipoibd/link/ib0"}))
	must(t, unix.Listen(fd, 1))
	openTAP(t, spec("ib0"))
}

// Of many simultaneous starts exactly one holds the interface, and the others name its
// process, whether or not the interface existed before.
func TestOneOfManyStartsHoldsTheInterface(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	const starts = 8
	for _, there := range []bool{false, true, true} {
		type outcome struct {
			tap     *link.TAP
			adopted bool
			err     error
		}
		outcomes := make(chan outcome, starts)
		for range starts {
			go func() {
				tap, adopted, err := link.Open(spec("ib0"))
				outcomes <- outcome{tap, adopted, err}
			}()
		}
		var holders []*link.TAP
		for range starts {
			o := <-outcomes
			var owned *link.OwnedError
			switch {
			case o.err == nil:
				holders = append(holders, o.tap)
			case !errors.As(o.err, &owned) || owned.PID != os.Getpid():
				t.Errorf("Open = %v, want ErrOwned by process %d", o.err, os.Getpid())
			}
		}
		if len(holders) != 1 {
			t.Errorf("%d of %d starts hold the interface (it existed before: %t), want one", len(holders), starts, there)
		}
		for _, tap := range holders {
			if f, err := tap.Inspect(); err != nil || f.Foreign != 0 || len(f.Restored) != 0 {
				t.Errorf("Inspect = %+v, %v", f, err)
			}
			must(t, tap.Close())
		}
	}
	must(t, link.Delete("ib0"))
}
