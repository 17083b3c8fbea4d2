package process

import (
	"errors"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"ipoibd/cmd/ipoibd/internal/process/processtest"
)

const mebibyte = 1 << 20

// limited is the default limit of the kernel and of container runtimes.
const limited = 8 * mebibyte

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func usage(t *testing.T) processtest.Usage {
	t.Helper()
	u, err := processtest.ReadUsage()
	must(t, err)
	return u
}

func limit(t *testing.T) {
	t.Helper()
	must(t, unix.Setrlimit(unix.RLIMIT_MEMLOCK, &unix.Rlimit{Cur: limited, Max: limited}))
}

// privileged reports whether the process has the capability and it counts: in the
// initial user namespace, which maps every user to itself.
func privileged(t *testing.T) bool {
	t.Helper()
	uids, err := os.ReadFile("/proc/self/uid_map")
	must(t, err)
	return hasCapability() && strings.Join(strings.Fields(string(uids)), " ") == "0 0 4294967295"
}

// lock locks memory and reports whether that was allowed. It fails the test if the
// answer does not match the process's privileges.
func lock(t *testing.T) bool {
	t.Helper()
	err := LockMemory()
	if !privileged(t) {
		t.Logf("this process lacks CAP_IPC_LOCK, so this shows only the refusal: %v", err)
		if !errors.Is(err, ErrMayNotLock) {
			t.Errorf("got %v, want %v", err, ErrMayNotLock)
		}
		return false
	}
	must(t, err)
	return true
}

// A mapping made after the lock is locked too, and takes no memory before it is used.
func TestR17LockTakesNoMemory(t *testing.T) {
	if alone(t, asIs) {
		return
	}
	limit(t)
	before := usage(t)
	if !lock(t) {
		return
	}
	locked := usage(t)
	t.Logf("resident %d MiB, after the lock %d MiB (%d MiB of address space)",
		before.Resident/mebibyte, locked.Resident/mebibyte, locked.Locked/mebibyte)
	if more := locked.Resident - before.Resident; more > mapped(t)+8*mebibyte {
		t.Errorf("the lock took %d MiB, the files have %d MiB", more/mebibyte, mapped(t)/mebibyte)
	}

	const size = 256 * mebibyte
	mem, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	must(t, err)
	later := usage(t)
	if later.Locked-locked.Locked < size || later.Resident-locked.Resident > size/8 {
		t.Errorf("%+v, before 256 MiB were mapped: %+v", later, locked)
	}
	must(t, unix.Munmap(mem))
}

// mapped returns the total size of the mapped files.
func mapped(t *testing.T) (sum int64) {
	t.Helper()
	maps, err := os.ReadFile("/proc/self/maps")
	must(t, err)
	for _, m := range files(maps) {
		sum += int64(m.end - m.start)
	}
	return sum
}

// The runtime returns unused memory to the kernel even if it is locked.
func TestR17HeapIsGivenBack(t *testing.T) {
	if alone(t, asIs) {
		return
	}
	if !lock(t) {
		return
	}
	const size = 256 * mebibyte
	full := usageWith(t, size)
	debug.FreeOSMemory()
	empty := usage(t)
	t.Logf("resident %d MiB, then %d MiB", full.Resident/mebibyte, empty.Resident/mebibyte)
	if full.Resident-empty.Resident < size*3/4 {
		t.Errorf("%d MiB of heap were freed, but only %d MiB returned to the kernel", size/mebibyte, (full.Resident-empty.Resident)/mebibyte)
	}
}

// usageWith returns the usage while size bytes of heap are filled.
func usageWith(t *testing.T, size int) processtest.Usage {
	t.Helper()
	heap := make([]byte, size)
	for i := 0; i < len(heap); i += os.Getpagesize() {
		heap[i] = 1
	}
	defer runtime.KeepAlive(heap)
	return usage(t)
}

// Once all caches have been dropped, no page of the program has to be read again.
func TestR17NoMajorFaults(t *testing.T) {
	if alone(t, asIs) {
		return
	}
	if !lock(t) {
		return
	}
	if err := processtest.DropCaches(); err != nil {
		t.Logf("caches not dropped: %v", err) // /proc/sys may be read-only
	}
	maps, err := os.ReadFile("/proc/self/maps")
	must(t, err)
	before, err := processtest.MajorFaults()
	must(t, err)
	var pages int
	for _, m := range files(maps) {
		pages += touch(t, m)
	}
	after, err := processtest.MajorFaults()
	must(t, err)
	t.Logf("%d pages touched, %d major faults", pages, after-before)
	if after != before {
		t.Errorf("%d major faults", after-before)
	}
}

// touch reads one byte of every page of a mapping and returns the number of pages.
func touch(t *testing.T, m mapping) (pages int) {
	t.Helper()
	var b [1]byte
	local := unix.Iovec{Base: &b[0], Len: 1}
	for at := m.start; at < m.end; at += uintptr(os.Getpagesize()) {
		_, err := unix.ProcessVMReadv(os.Getpid(), []unix.Iovec{local}, []unix.RemoteIovec{{Base: at, Len: 1}}, 0)
		must(t, err)
		pages++
	}
	return pages
}

// Where the process may not lock everything, LockMemory locks nothing and the process
// survives, also as root of a user namespace, whose capability has no effect.
func TestR17LockIsRefused(t *testing.T) {
	if alone(t, withoutCapability) {
		return
	}
	refused(t)
}

func TestR17LockIsRefusedToRootOfAUserNamespace(t *testing.T) {
	if alone(t, inUserNamespace) {
		return
	}
	if !hasCapability() {
		t.Error("the process lacks CAP_IPC_LOCK, so the test shows nothing")
	}
	refused(t)
}

func refused(t *testing.T) {
	t.Helper()
	limit(t)
	for _, cur := range []uint64{limited, 0} {
		must(t, unix.Setrlimit(unix.RLIMIT_MEMLOCK, &unix.Rlimit{Cur: cur, Max: limited}))
		err := LockMemory()
		if !errors.Is(err, ErrMayNotLock) {
			t.Errorf("limit %d: %v, want %v", cur, err, ErrMayNotLock)
		}
	}
	if u := usage(t); u.Locked != 0 {
		t.Errorf("%d bytes are locked", u.Locked)
	}
	mem, err := unix.Mmap(-1, 0, 4*limited, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		t.Fatalf("mapping memory fails after the refusal: %v", err)
	}
	must(t, unix.Munmap(mem))
}

// The error names the risk and the remedies.
func TestR17RefusalSaysWhatToDo(t *testing.T) {
	for _, word := range []string{"wait forever", "CAP_IPC_LOCK", "LimitMEMLOCK=infinity", "--ulimit memlock=-1", "--cap-add IPC_LOCK"} {
		if !strings.Contains(ErrMayNotLock.Error(), word) {
			t.Errorf("%q is missing in %q", word, ErrMayNotLock)
		}
	}
	if strings.Contains(ErrMayNotLock.Error(), "\n") || errors.Is(ErrMayNotLock, syscall.EPERM) {
		t.Error("want one line that does not wrap EPERM")
	}
}
