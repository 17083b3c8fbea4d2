package link_test

import (
	"encoding/json"
	"errors"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"ipoibd/link"
	"ipoibd/link/kernel/capsule"
	"ipoibd/link/linktest/nstest"
)

// Another TAP continues the queues of one that is given up: ib0 keeps its carrier, no frame is lost, and
// no inspection finds a foreign queue. The last one leaves ib0 as any other does.
func TestImport(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	tap, h := openUp(t)
	if _, err := tap.SetOffloads(link.AllOffloads); err != nil {
		t.Fatal(err)
	}
	must(t, tap.SetCarrier(true))
	for range 3 {
		next, err := link.Import(exported(t, tap, nil))
		must(t, err)
		tap.GiveUp()
		must(t, tap.Close())
		next.Own()
		tap = next
		t.Cleanup(func() { _ = next.Close() })
		if !arrives(t, tap, h) {
			t.Fatal("a frame of the host was lost")
		}
		found, err := tap.Inspect()
		if must(t, err); found.Foreign != 0 || len(found.Restored) > 0 {
			t.Errorf("an inspection has found %+v", found)
		}
		if s, err := tap.State(); err != nil || !s.Carrier {
			t.Errorf("state %+v, %v", s, err)
		}
	}
	if _, _, err := link.Open(spec("ib0")); !errors.Is(err, link.ErrOwned) {
		t.Errorf("another daemon: %v, want link.ErrOwned", err)
	}
	must(t, tap.Close())
	again, adopted := openTAP(t, spec("ib0"))
	if s, err := again.State(); err != nil || !adopted || s.Carrier {
		t.Errorf("after the last Close: adopted %v, %+v, %v", adopted, s, err)
	}
}

// A TAP that was not owned yet leaves everything to the one that it was to continue.
func TestImportWithoutOwning(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	tap, h := openUp(t)
	must(t, tap.SetCarrier(true))
	other, err := link.Import(exported(t, tap, nil))
	must(t, err)
	must(t, other.Close())
	if !arrives(t, tap, h) {
		t.Error("a frame of the host was lost")
	}
	if found, err := tap.Inspect(); err != nil || len(found.Restored) > 0 {
		t.Errorf("%+v, %v", found, err)
	}
}

// A TAP that is lent to a namespace which the other process does not see, such as one in a container without its path,
// is refused: that process would delete the interface.
func TestImportRefusesAHiddenNamespace(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	path := named(t, nstest.New(t))
	tap, _, err := link.Open(link.Spec{Name: "net1", Netns: path, MAC: [6]byte{2, 0, 0, 0, 0, 9}, MTU: 1400})
	must(t, err)
	defer func() { must(t, tap.Remove()) }()
	hidden := func(tap map[string]any, _ []int) { tap["netns"] = path + "-hidden" }
	if _, err := link.Import(exported(t, tap, hidden)); !errors.Is(err, link.ErrNoNamespace) {
		t.Errorf("hidden: %v, want link.ErrNoNamespace", err)
	}
	next, err := link.Import(exported(t, tap, nil))
	must(t, err)
	must(t, next.Close())
}

// Descriptors that are not queues of one TAP are refused, and closed.
func TestImportChecks(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	tap, _ := openUp(t)
	files := func() int {
		list, err := os.ReadDir("/proc/self/fd")
		must(t, err)
		return len(list)
	}
	for name, change := range map[string]func(tap map[string]any, fds []int){
		"a wrong name":        func(tap map[string]any, _ []int) { tap["name"] = "../ib0" },
		"impossible offloads": func(tap map[string]any, _ []int) { tap["offloads"] = 1 << 30 },
		"not a queue": func(_ map[string]any, fds []int) {
			must(t, unix.Dup3(int(os.Stdin.Fd()), fds[0], unix.O_CLOEXEC))
		},
		"a queue of no TAP yet": func(_ map[string]any, fds []int) {
			other, err := openTun()
			must(t, err)
			must(t, unix.Dup3(other, fds[0], unix.O_CLOEXEC))
			must(t, unix.Close(other))
		},
	} {
		before := files()
		r := exported(t, tap, change)
		_, err := link.Import(r)
		r.Close()
		if err == nil {
			t.Errorf("%s: accepted", name)
		} else {
			t.Logf("%s: %v", name, err)
		}
		if now := files(); now != before {
			t.Errorf("%s: %d descriptors are open, were %d", name, now, before)
		}
	}
	for name, r := range map[string]*capsule.Reader{"nothing": reader(t, nil, nil), "no queue": reader(t, []capsule.Part{{Name: "tap", Value: json.RawMessage(`{"name":"ib0"}`)}}, nil)} {
		if _, err := link.Import(r); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

// exported returns what a TAP exports, after change has changed its value and its descriptors.
func exported(t *testing.T, tap *link.TAP, change func(tap map[string]any, fds []int)) *capsule.Reader {
	t.Helper()
	w := capsule.NewWriter()
	tap.Export(w)
	parts, fds, err := w.Contents()
	must(t, err)
	if change != nil {
		var value map[string]any
		must(t, json.Unmarshal(parts[0].Value, &value))
		change(value, fds)
		parts[0].Value, err = json.Marshal(value)
		must(t, err)
	}
	return reader(t, parts, fds)
}

func reader(t *testing.T, parts []capsule.Part, fds []int) *capsule.Reader {
	t.Helper()
	r, err := capsule.NewReader(parts, fds)
	must(t, err)
	return r
}
