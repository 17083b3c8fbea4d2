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

	"ipoibd/scripts/vm/kernel"
	"ipoibd/scripts/vm/protocol"
)

// commandLine is the kernel's command line, for a quick guest: it tests no ciphers, and clears pages neither twice nor by
// the megabyte. A panic ends the machine. The watchdog of the TSC stays on: on a busy machine the kernel may measure a TSC
// frequency that is wrong by a factor of five, and then must use the HPET.
const commandLine = "console=%s quiet panic=-1 mitigations=off random.trust_cpu=on no_timer_check " +
	"cryptomgr.notests=1 init_on_alloc=0 transparent_hugepage=never"

// machine is the machine that QEMU emulates.
type machine struct {
	emulator, pkg string // the program, and its Debian package
	kind, cpu     string
	console       string // the kernel's name of the serial port
}

var machines = map[kernel.Arch]machine{
	kernel.AMD64: {"qemu-system-x86_64", "qemu-system-x86", "pc", cpuAMD64, "ttyS0"},
	kernel.ARM64: {"qemu-system-aarch64", "qemu-system-arm", "virt", "cortex-a72", "ttyAMA0"},
}

// cpuAMD64 has every feature that QEMU emulates except four. After CMPXCHG16B, QEMU 7.2 leaves the result of an earlier
// comparison in EFLAGS. The kernel's SLUB allocator uses this instruction if the CPU offers it, and the kernel dies of a
// double fault at the next interrupt. The other three make guests slow: with ERMS, the kernel and libc copy and clear
// memory by instructions that QEMU executes byte by byte; SMAP ends a translated block twice in each copy from or to user
// space; and page tables of five levels take longer to walk.
const cpuAMD64 = "max,-cx16,-erms,-smap,-la57"

// firstFD is the child's number of the first descriptor in exec.Cmd's ExtraFiles.
const firstFD = 3

// start starts QEMU, with the channel, the TAPs and the wires as descriptors, and the
// goroutines that read the channel and wait for the end.
func (g *Guest) start(spec Spec) error {
	image, err := g.image(spec)
	if err != nil {
		return err
	}
	ours, theirs, err := socketPair()
	if err != nil {
		return err
	}
	files := []*os.File{theirs}
	for _, nic := range spec.NICs {
		if nic.Wire != nil {
			files = append(files, nic.Wire)
		} else {
			files = append(files, nic.Segment.Tap())
		}
	}
	g.cmd = exec.Command(machines[arch()].emulator, g.arguments(spec, image)...)
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

func (g *Guest) arguments(spec Spec, image string) []string {
	kit := filepath.Join(os.Getenv(kitEnv), string(spec.Series))
	m := machines[arch()]
	args := []string{
		"-machine", m.kind, "-accel", "tcg", "-cpu", m.cpu,
		"-smp", fmt.Sprint(max(1, spec.CPUs)),
		"-m", fmt.Sprint(orDefault(spec.Memory, defaultMemory)),
		"-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
		"-kernel", filepath.Join(kit, vmlinuxName),
		"-initrd", image,
		"-append", fmt.Sprintf(commandLine, m.console),
		"-serial", "file:" + g.console,
		"-device", "virtio-serial-pci",
		"-chardev", fmt.Sprintf("socket,id=agent,fd=%d", firstFD),
		"-device", "virtserialport,chardev=agent,name=" + protocol.Port,
	}
	if spec.Counted {
		args = append(args, "-icount", "shift=0,sleep=on")
	}
	for i, nic := range spec.NICs {
		args = append(args, nic.arguments(i)...)
	}
	return args
}

func (n NIC) arguments(i int) []string {
	device := fmt.Sprintf("virtio-net-pci,netdev=nic%d,mac=%s,romfile=", i, newMAC())
	args := []string{"-netdev", fmt.Sprintf("tap,id=nic%d,fd=%d", i, firstFD+1+i)}
	if n.Wire != nil {
		args[1] = fmt.Sprintf("dgram,id=nic%d,local.type=fd,local.str=%d", i, firstFD+1+i)
	}
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

// newMAC returns an address that is unique among the guests of this process: locally
// administered, with QEMU's prefix.
func newMAC() string {
	n := nics.Add(1)
	return fmt.Sprintf("52:54:00:%02x:%02x:%02x", n>>16&0xff, n>>8&0xff, n&0xff)
}

// socketPair creates a channel and returns our end and QEMU's.
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
		return nil, nil, fmt.Errorf("create the channel: %w", err)
	}
	return conn.(*net.UnixConn), theirs, nil
}

// Release returns what uname prints in guests of the spec's series.
func (s Spec) Release() (string, error) {
	text, err := os.ReadFile(filepath.Join(os.Getenv(kitEnv), string(s.Series), releaseName))
	return strings.TrimSpace(string(text)), err
}
