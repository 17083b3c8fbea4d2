package guest

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"

	"ipoibd/scripts/vm/protocol"
)

// commandLine is the kernel's: quick to boot, and a panic ends the machine. It keeps
// watch over its TSC, whose frequency is measured wrongly, by five times, where the
// machine below is busy: time runs by the HPET then.
const commandLine = "console=ttyS0 quiet panic=-1 mitigations=off random.trust_cpu=on nokaslr no_timer_check"

// cpu is all that QEMU emulates but CMPXCHG16B: QEMU 7.2 then leaves what an
// earlier instruction compared in EFLAGS, and the kernel, whose SLUB allocator uses it
// wherever the CPU has it, dies of a double fault at the next interrupt.
const cpu = "max,-cx16"

// firstFD is the number of the first of exec.Cmd's ExtraFiles in the child.
const firstFD = 3

// start starts QEMU, with the channel and the TAPs as descriptors, and the
// goroutines that read the channel and wait for the end.
func (g *Guest) start(spec Spec) error {
	ours, theirs, err := socketPair()
	if err != nil {
		return err
	}
	files := []*os.File{theirs}
	for _, nic := range spec.NICs {
		files = append(files, nic.Segment.Tap())
	}
	g.cmd = exec.Command(emulator, g.arguments(spec)...)
	g.cmd.Stdout, g.cmd.Stderr = &g.errors, &g.errors
	g.cmd.ExtraFiles = files
	g.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	err = g.cmd.Start()
	for _, f := range files {
		_ = f.Close()
	}
	if err != nil {
		_ = ours.Close()
		return err
	}
	g.end = ours
	go g.read()
	go g.wait()
	return nil
}

// wait waits for QEMU and for the reader, which ends with QEMU's end of the
// channel.
func (g *Guest) wait() {
	_ = g.cmd.Wait()
	<-g.gone
	_ = g.end.Close()
	close(g.ended)
}

func (g *Guest) arguments(spec Spec) []string {
	kit := filepath.Join(os.Getenv(kitEnv), string(spec.Series))
	args := []string{
		"-machine", "pc", "-accel", "tcg", "-cpu", cpu,
		"-smp", fmt.Sprint(max(1, spec.CPUs)),
		"-m", fmt.Sprint(orDefault(spec.Memory, defaultMemory)),
		"-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
		"-kernel", filepath.Join(kit, vmlinuxName),
		"-initrd", filepath.Join(kit, imageName),
		"-append", commandLine,
		"-serial", "file:" + g.console,
		"-device", "virtio-serial-pci",
		"-chardev", fmt.Sprintf("socket,id=agent,fd=%d", firstFD),
		"-device", "virtserialport,chardev=agent,name=" + protocol.Port,
	}
	for i, nic := range spec.NICs {
		args = append(args, nic.arguments(i)...)
	}
	return args
}

func (n NIC) arguments(i int) []string {
	device := fmt.Sprintf("virtio-net-pci,netdev=nic%d,mac=%s,romfile=", i, newMAC())
	args := []string{"-netdev", fmt.Sprintf("tap,id=nic%d,fd=%d", i, firstFD+1+i)}
	if n.Bridged {
		args = append(args, "-device", fmt.Sprintf("pci-bridge,id=bridge%d,chassis_nr=%d", i, i+1))
		device += fmt.Sprintf(",bus=bridge%d,addr=1", i)
	}
	return append(args, "-device", device)
}

func orDefault(n, otherwise int) int {
	if n == 0 {
		return otherwise
	}
	return n
}

var nics atomic.Uint32

// newMAC is an address that no other NIC of this process's guests has: locally
// administered, with QEMU's prefix.
func newMAC() string {
	n := nics.Add(1)
	return fmt.Sprintf("52:54:00:%02x:%02x:%02x", n>>16&0xff, n>>8&0xff, n&0xff)
}

// socketPair makes a channel: our end, and QEMU's.
func socketPair() (*net.UnixConn, *os.File, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, os.NewSyscallError("socketpair", err)
	}
	ours, theirs := os.NewFile(uintptr(fds[0]), "channel"), os.NewFile(uintptr(fds[1]), "channel")
	defer ours.Close() // net has a duplicate
	conn, err := net.FileConn(ours)
	if err != nil {
		_ = theirs.Close()
		return nil, nil, fmt.Errorf("make the channel: %w", err)
	}
	return conn.(*net.UnixConn), theirs, nil
}

// Release is what uname says in guests of the spec's series.
func (s Spec) Release() (string, error) {
	text, err := os.ReadFile(filepath.Join(os.Getenv(kitEnv), string(s.Series), releaseName))
	return strings.TrimSpace(string(text)), err
}
