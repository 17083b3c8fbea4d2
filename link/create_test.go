package link_test

import (
	"bufio"
	"errors"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"ipoibd/link"
	"ipoibd/link/linktest/nstest"
)

// grabEnv makes the test binary a process without privileges that keeps trying to attach
// a queue to an interface and reports its first success. churnEnv makes it a process
// that keeps creating and deleting an interface.
const (
	grabEnv  = "TEST_IPOIBD_LINK_TEST_GRAB"
	churnEnv = "TEST_IPOIBD_LINK_TEST_CHURN"
)

func grab(name string) {
	fd, err := openTun()
	if err == nil {
		err = errors.Join(syscall.Setgroups(nil), syscall.Setresgid(nobody, nobody, nobody), syscall.Setresuid(nobody, nobody, nobody))
	}
	if err != nil {
		os.Stdout.WriteString(err.Error() + "\n")
		return
	}
	os.Stdout.WriteString("trying\n")
	for attach(fd, name) != nil {
	}
	os.Stdout.WriteString("attached\n")
	_, _ = os.Stdin.Read(make([]byte, 1))
}

func churn(name string) {
	os.Stdout.WriteString("churning\n")
	for {
		tap, _, err := link.Open(spec(name))
		if err == nil {
			err = tap.Remove()
		}
		if err != nil {
			os.Stdout.WriteString(err.Error() + "\n")
			return
		}
	}
}

// startAs starts the test binary as one of the processes above.
func startAs(t *testing.T, env, name string) (*exec.Cmd, *bufio.Reader) {
	t.Helper()
	exe, err := os.Executable()
	must(t, err)
	cmd := exec.CommandContext(t.Context(), exe)
	cmd.Env = append(os.Environ(), env+"="+name)
	_, err = cmd.StdinPipe()
	must(t, err)
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	return cmd, bufio.NewReader(out)
}

// Another user who keeps trying cannot attach a queue to an interface during its
// creation.
func TestNoOtherUserAttachesDuringTheCreation(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	for range 2 {
		cmd, says := startAs(t, grabEnv, "ib0")
		line, err := says.ReadString('\n')
		must(t, err)
		if strings.Contains(line, unix.EINVAL.Error()) {
			t.Logf("this user namespace has no user %d, so no one tries", nobody)
			_ = cmd.Wait()
			continue
		}
		if line != "trying\n" {
			t.Fatalf("the other user says %q", line)
		}
		defer func() {
			must(t, cmd.Process.Kill())
			if rest, err := io.ReadAll(says); len(rest) != 0 || err != nil {
				t.Errorf("the other user says %q, %v; want nothing more", rest, err)
			}
			if err := cmd.Wait(); err == nil || cmd.ProcessState.Exited() {
				t.Errorf("the other user ended before the test: %v", err)
			}
		}()
	}
	for i := range 30 {
		tap, _, err := link.Open(spec("ib0"))
		if err != nil {
			t.Fatalf("start %d: %v", i, err)
		}
		f, err := tap.Inspect()
		if err != nil || f.Foreign != 0 {
			t.Errorf("start %d: Inspect = %+v, %v", i, f, err)
		}
		must(t, tap.Remove())
	}
}

// A process that is killed while it creates an interface leaves no interface, or one that
// the next start adopts.
func TestKilledCreationLeavesNothingHalfMade(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	for i := range 20 {
		updates, stop := make(chan netlink.LinkUpdate, 1000), make(chan struct{})
		must(t, netlink.LinkSubscribe(updates, stop))
		cmd, says := startAs(t, churnEnv, "ib0")
		hears(t, says, "churning")
		<-updates // an interface was created
		time.Sleep(time.Duration(i) * 100 * time.Microsecond)
		must(t, cmd.Process.Kill())
		_ = cmd.Wait()
		close(stop)
		tap, _, err := link.Open(spec("ib0"))
		if err != nil {
			t.Fatalf("round %d: %v", i, err)
		}
		links, err := netlink.LinkList()
		must(t, err)
		for _, l := range links {
			if a := l.Attrs(); l.Type() == "tuntap" && a.Name != "ib0" {
				t.Errorf("round %d: %s was left behind", i, a.Name)
			}
		}
		must(t, tap.Remove())
	}
}
