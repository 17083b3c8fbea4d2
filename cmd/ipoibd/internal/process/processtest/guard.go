package processtest

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Guard answers the questions of the filter. Its goroutine ends with the process.
type Guard struct {
	listener int

	mu     sync.Mutex
	opened map[string]int
}

// Opened returns the files without a disk that were opened, and how often.
func (g *Guard) Opened() map[string]int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return maps.Clone(g.opened)
}

// question is struct seccomp_notif: the filter holds a thread in a call.
type question struct {
	id     uint64
	thread uint32
	_      uint32
	nr     int32
	arch   uint32
	_      uint64 // the instruction
	args   [6]uint64
}

// answer is struct seccomp_notif_resp.
type answer struct {
	id    uint64
	value int64
	errno int32
	flags uint32
}

// watch answers questions for ever. It must not call openat itself.
func (g *Guard) watch() {
	runtime.LockOSThread()
	for {
		var q question
		if errno := ioctl(g.listener, unix.SECCOMP_IOCTL_NOTIF_RECV, unsafe.Pointer(&q)); errno != 0 {
			continue // interrupted by a signal, or the thread has ended
		}
		path := absolute(int32(q.args[0]), pathAt(uintptr(q.args[1])))
		if !onNoDisk(path) {
			fmt.Fprintf(os.Stderr, "processtest: thread %d opens %q\n", q.thread, path)
			_ = unix.Tgkill(os.Getpid(), int(q.thread), unix.SIGSYS)
			return
		}
		g.note(path)
		a := answer{id: q.id, flags: unix.SECCOMP_USER_NOTIF_FLAG_CONTINUE}
		ioctl(g.listener, unix.SECCOMP_IOCTL_NOTIF_SEND, unsafe.Pointer(&a))
	}
}

func (g *Guard) note(path string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.opened == nil {
		g.opened = make(map[string]int)
	}
	g.opened[path]++
}

func ioctl(fd int, request uintptr, arg unsafe.Pointer) unix.Errno {
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), request, uintptr(arg))
	return errno
}

// absolute returns the absolute path of an openat; a relative one is relative to dir.
func absolute(dir int32, path string) string {
	if filepath.IsAbs(path) || dir == unix.AT_FDCWD {
		return path
	}
	link := make([]byte, unix.PathMax)
	n, _ := unix.Readlink(fmt.Sprintf("/proc/self/fd/%d", dir), link)
	return filepath.Join(string(link[:max(n, 0)]), path)
}

// verbsFolder has the nodes of RDMA devices, on devtmpfs.
const verbsFolder = "/dev/infiniband/"

// onNoDisk reports whether opening a path needs no disk: a file in /proc or /sys, a
// namespace, or an RDMA device, but not a link in /proc to a file on a disk. For a file
// that does not exist, its folder counts.
func onNoDisk(path string) bool {
	if !filepath.IsAbs(path) {
		return false
	}
	var fs unix.Statfs_t
	switch err := unix.Statfs(path, &fs); {
	case err == unix.ENOENT || err == unix.ENOTDIR: // ends at the root, which exists
		return onNoDisk(filepath.Dir(path))
	case err != nil:
		return false
	}
	switch fs.Type {
	case unix.PROC_SUPER_MAGIC, unix.NSFS_MAGIC, unix.SYSFS_MAGIC:
		return true
	}
	return strings.HasPrefix(path, verbsFolder) && isDevice(path)
}

func isDevice(path string) bool {
	var st unix.Stat_t
	return unix.Stat(path, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFCHR
}

// pathAt reads a string of this process at an address, up to the end of the
// second page.
func pathAt(at uintptr) string {
	page := uintptr(os.Getpagesize())
	buf := make([]byte, 2*page-at%page)
	n := readMemory(buf, at)
	if n == 0 {
		n = readMemory(buf[:page-at%page], at) // the second page is not mapped
	}
	text, _, _ := bytes.Cut(buf[:n], []byte{0})
	return string(text)
}

func readMemory(into []byte, at uintptr) int {
	local := unix.Iovec{Base: &into[0]}
	local.SetLen(len(into))
	n, _ := unix.ProcessVMReadv(os.Getpid(), []unix.Iovec{local}, []unix.RemoteIovec{{Base: at, Len: len(into)}}, 0)
	return max(n, 0)
}
