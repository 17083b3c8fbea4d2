package nstest

import (
	"errors"
	"os"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Requests of userfaultfd(2), linux/userfaultfd.h, which x/sys/unix lacks.
const (
	uffdAPI             = 0xaa
	uffdioAPI           = 0xc018aa3f
	uffdioRegister      = 0xc020aa00
	uffdioZeropage      = 0xc020aa04
	uffdRegisterMissing = 1
)

// ethFeatures is ETH_SS_FEATURES of linux/ethtool.h, a set of strings that every netdev has.
const ethFeatures = 4

// HoldRTNL makes the kernel hold its lock of all interfaces (rtnl), which is that of all namespaces. It returns
// when the lock is held, until release is called or the test ends. name is a netdev of the namespace. It
// requires CAP_SYS_PTRACE.
//
// The kernel copies the strings of an ETHTOOL_GSTRINGS to the caller while it holds the lock. The copy
// waits for a page that release provides by userfaultfd(2).
func (ns *Namespace) HoldRTNL(name string) (release func()) {
	ns.tb.Helper()
	page := os.Getpagesize()
	mem, err := unix.Mmap(-1, 0, 2*page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	must(ns.tb, "map two pages", err)
	type gstrings struct{ cmd, set, len uint32 } // struct ethtool_gstrings; the strings follow
	request := (*gstrings)(unsafe.Pointer(&mem[page-int(unsafe.Sizeof(gstrings{}))]))
	*request = gstrings{cmd: unix.ETHTOOL_GSTRINGS, set: ethFeatures}
	uffd, _, errno := unix.Syscall(unix.SYS_USERFAULTFD, unix.O_CLOEXEC|unix.O_NONBLOCK, 0, 0)
	if errno != 0 {
		ns.tb.Fatalf("userfaultfd: %v", errno)
	}
	ioctl := func(what string, request uintptr, arg unsafe.Pointer) {
		if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uffd, request, uintptr(arg)); errno != 0 {
			ns.tb.Fatalf("%s: %v", what, errno)
		}
	}
	ioctl("UFFDIO_API", uffdioAPI, unsafe.Pointer(&[3]uint64{uffdAPI}))
	second := uint64(uintptr(unsafe.Pointer(&mem[page])))
	ioctl("UFFDIO_REGISTER", uffdioRegister, unsafe.Pointer(&[4]uint64{second, uint64(page), uffdRegisterMissing}))

	sock := -1
	ns.Do(func() { sock, err = unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0) })
	must(ns.tb, "make a socket", err)
	ifr := struct { // struct ifreq
		name [unix.IFNAMSIZ]byte
		data unsafe.Pointer
		_    [16]byte
	}{data: unsafe.Pointer(request)}
	copy(ifr.name[:], name)
	ended := make(chan unix.Errno, 1)
	go func() {
		_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(sock), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&ifr)))
		ended <- errno
	}()
	waits := []unix.PollFd{{Fd: int32(uffd), Events: unix.POLLIN}} // readable once the copy waits
	n, err := unix.Poll(waits, int(operationalLimit.Milliseconds()))
	for errors.Is(err, unix.EINTR) { // a signal of Go's scheduler
		n, err = unix.Poll(waits, int(operationalLimit.Milliseconds()))
	}
	if n != 1 || waits[0].Revents != unix.POLLIN {
		ns.tb.Fatalf("the kernel does not hold the lock after %v: %d descriptors, events %#x, %v",
			operationalLimit, n, waits[0].Revents, err)
	}
	release = sync.OnceFunc(func() {
		ioctl("UFFDIO_ZEROPAGE", uffdioZeropage, unsafe.Pointer(&[4]uint64{second, uint64(page)}))
		if errno := <-ended; errno != 0 {
			ns.tb.Errorf("ETHTOOL_GSTRINGS of %s: %v", name, errno)
		}
		unix.Close(sock)
		unix.Close(int(uffd))
		must(ns.tb, "unmap", unix.Munmap(mem))
	})
	ns.tb.Cleanup(release)
	return release
}
