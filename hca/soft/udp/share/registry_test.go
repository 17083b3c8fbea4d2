package share

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestRegistrationRoundTrip(t *testing.T) {
	want := registration{slot: 63, source: 65535, inode: 1<<64 - 1, user: 1<<32 - 1}
	text := want.encode()
	if got, ok := parseRegistration(want.slot, text); !ok || got != want {
		t.Errorf("%+v, %v", got, ok)
	}
	for n := range text {
		if got, ok := parseRegistration(0, text[:n]); ok {
			t.Errorf("%q is a complete registration: %+v", text[:n], got)
		}
	}
	for _, text := range []string{"0 5 0\n", "5 0 0\n", "65536 5 0\n", "-1 5 0\n", "x"} {
		if got, ok := parseRegistration(0, []byte(text)); ok {
			t.Errorf("%q is a registration: %+v", text, got)
		}
	}
}

func FuzzParseRegistration(f *testing.F) {
	f.Add((&registration{source: 49152, inode: 12345}).encode())
	f.Fuzz(func(t *testing.T, text []byte) {
		if r, ok := parseRegistration(1, text); ok && (r.source == 0 || r.inode == 0 || r.slot != 1) {
			t.Errorf("%q: %+v", text, r)
		}
	})
}

const unusedPort = 4790 // on netdev 7, to which no socket is bound

func openTestRegistry(t *testing.T, dir string) *registry {
	t.Helper()
	r, err := openRegistry(dir, 7)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.close() })
	return r
}

// A slot belongs to one daemon until that ends, and its registration counts only as long.
func TestSlotsAreClaimedOnce(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "share")
	a, b := openTestRegistry(t, dir), openTestRegistry(t, dir)
	var files []*os.File
	for want := range NumSlots {
		slot, file, err := []*registry{a, b}[want%2].claim()
		if err != nil || slot != want {
			t.Fatalf("claimed slot %d, error %v, want slot %d", slot, err, want)
		}
		files = append(files, file)
		if want == 5 {
			reg := registration{slot, 50000, 99, 1}
			if _, err := file.Write(reg.encode()); err != nil {
				t.Fatal(err)
			}
		}
	}
	if slot, _, err := a.claim(); err == nil {
		t.Errorf("claimed slot %d of a full registry", slot)
	}
	if live, err := b.list(); err != nil || len(live) != 1 || live[0].slot != 5 || live[0].source != 50000 {
		t.Errorf("registrations %+v, error %v", live, err)
	}
	_ = files[5].Close()
	if live, err := b.list(); err != nil || len(live) != 0 {
		t.Errorf("registrations %+v of a daemon that has ended, error %v", live, err)
	}
	if slot, file, err := b.claim(); err != nil || slot != 5 {
		t.Errorf("claimed slot %d, error %v, want the one that is free", slot, err)
	} else {
		files[5] = file
	}
	for _, file := range files {
		_ = file.Close()
	}
}

// Only one daemon joins at a time.
func TestRegistryIsLocked(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "share")
	a, b := openTestRegistry(t, dir), openTestRegistry(t, dir)
	lock, err := a.lock()
	if err != nil {
		t.Fatal(err)
	}
	released := make(chan struct{})
	go func() {
		defer close(released)
		if second, err := b.lock(); err != nil {
			t.Error(err)
		} else {
			_ = second.Close()
		}
	}()
	select {
	case <-released:
		t.Error("two locks at a time")
	default:
	}
	_ = lock.Close()
	<-released
}

// A directory that other users can enter is refused.
func TestRegistryIsPrivate(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "share")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o750); err != nil {
		t.Fatal(err)
	}
	if _, err := openRegistry(dir, 7); err == nil || !strings.Contains(err.Error(), "0700") {
		t.Errorf("open: %v", err)
	}
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(t.TempDir(), link); err != nil {
		t.Fatal(err)
	}
	if _, err := openRegistry(link, 7); err == nil {
		t.Error("opened a symbolic link")
	}
}

// The map goes from one daemon to the next as a descriptor.
func TestHandover(t *testing.T) {
	r := openTestRegistry(t, filepath.Join(t.TempDir(), strings.Repeat("long", 30)))
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	for range 2 { // the second time the name of the first socket exists
		l, err := r.offer(3)
		if err != nil {
			t.Fatal(err)
		}
		l.SetUnlinkOnClose(false)
		done := make(chan struct{})
		go func() { defer close(done); serve(l, int(null.Fd())) }()
		fd, err := r.fetch(t.Context(), 3)
		if err != nil {
			t.Fatal(err)
		}
		got := os.NewFile(uintptr(fd), "got")
		if !sameFile(t, got, null) {
			t.Error("another file")
		}
		_ = got.Close()
		_ = l.Close()
		<-done
	}
	if _, err := r.fetch(t.Context(), 3); err == nil {
		t.Error("got a descriptor from a daemon that has ended")
	}
}

// Daemons that accept connections and never answer, because they are stopped, delay a daemon that
// joins only until another one answers, and by one second in all if none does.
func TestHandoverDespiteStoppedDaemons(t *testing.T) {
	r := openTestRegistry(t, filepath.Join(t.TempDir(), "share"))
	var all []registration
	for slot := range 40 {
		l, err := r.offer(slot)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		all = append(all, registration{slot: slot})
	}
	const limit = 10 * time.Second // a second for each daemon would be 40
	start := time.Now()
	_, err := r.fetchAny(all)
	if took := time.Since(start); !errors.Is(err, ErrNotJoined) || took > limit {
		t.Errorf("all are stopped: %v after %v", err, took)
	}
	l, err := r.offer(40)
	if err != nil {
		t.Fatal(err)
	}
	var server sync.WaitGroup
	server.Go(func() { serve(l, int(r.dir.Fd())) })
	start = time.Now()
	fd, err := r.fetchAny(append(all, registration{slot: 40}))
	if took := time.Since(start); err != nil || took > limit {
		t.Errorf("one answers: %v after %v", err, took)
	} else {
		_ = unix.Close(fd)
	}
	_ = l.Close()
	server.Wait()
}

// A daemon joins although all registered ones leave at this moment, which then no longer answer.
func TestJoinWhileAllLeave(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "share")
	var files []*os.File
	r := openTestRegistry(t, dir)
	for range 3 {
		slot, file, err := r.claim()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := file.Write((&registration{slot: slot, source: 50000, inode: 1, user: Nobody}).encode()); err != nil {
			t.Fatal(err)
		}
		files = append(files, file)
	}
	descriptor := func() (int, error) { return unix.Dup(int(r.dir.Fd())) }
	kernel := Kernel{NewSockets: descriptor, Program: func(int) (int, error) { return descriptor() }}
	var leaving sync.WaitGroup
	leaving.Go(func() {
		time.Sleep(10 * lockPause)
		for _, file := range files {
			_ = file.Close()
		}
	})
	m, err := Join(&Config{Dir: dir, Kernel: kernel}, 7, unusedPort)
	if err != nil {
		t.Fatal(err)
	}
	if !m.first || m.slot != len(files) {
		t.Errorf("joined with slot %d, first %t; want slot %d, first", m.slot, m.first, len(files))
	}
	if err := m.Close(); err != nil {
		t.Error(err)
	}
	leaving.Wait()
}

func sameFile(t *testing.T, a, b *os.File) bool {
	t.Helper()
	x, errX := a.Stat()
	y, errY := b.Stat()
	if errX != nil || errY != nil {
		t.Fatal(errX, errY)
	}
	return os.SameFile(x, y)
}

// A daemon whose file was removed is not taken for dead, even while the files of others remain;
// one that has ended is.
func TestRemovedRegistrationIsKept(t *testing.T) {
	r := openTestRegistry(t, filepath.Join(t.TempDir(), "share"))
	var known []registration
	files := map[int]*os.File{}
	for range 3 {
		slot, file, err := r.claim()
		if err != nil {
			t.Fatal(err)
		}
		files[slot] = file
		reg := registration{slot: slot, source: uint16(0xc000 + slot), inode: uint64(slot + 1)}
		if _, err := file.WriteAt(reg.encode(), 0); err != nil {
			t.Fatal(err)
		}
		known = append(known, reg)
	}
	if err := os.Remove(r.path("0")); err != nil {
		t.Fatal(err)
	}
	if err := files[1].Close(); err != nil {
		t.Fatal(err)
	}
	live, err := r.list()
	if err != nil {
		t.Fatal(err)
	}
	if got, want := r.withRemoved(live, known), []registration{known[2], known[0]}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}
