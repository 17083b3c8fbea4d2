package config

import (
	"reflect"
	"slices"
)

// Change is what a new configuration means for a device or an interface.
type Change string

// Changes.
const (
	Kept    Change = "kept"    // nothing changes
	Changed Change = "changed" // fields change while it works
	Rebuilt Change = "rebuilt" // it ends, and another one begins in its place
	Added   Change = "added"
	Removed Change = "removed"
)

// Plan leads from one configuration to another. Devices and interfaces are in the order of the
// new configuration; those that are removed come last.
type Plan struct {
	Devices    []Step[Device]
	Interfaces []Step[Interface]
}

// Step is what a plan does to the device or the interface of a name.
type Step[T Device | Interface] struct {
	Name   string
	Change Change
	Fields []string // that differ, by their names in a file; an interface's device differs if it is rebuilt
	Was    T        // zero if it is added
	Is     T        // zero if it is removed
}

// liveDevice and liveInterface are the fields that change while a device or an interface works.
// Any other field needs another one in its place.
var (
	liveDevice    = []string{"pkeys", "peers"}
	liveInterface = []string{"mtu", "addresses", "routes", "up", "source_check", "follow"}
)

// MakePlan returns the plan from one valid configuration to another. It returns [Mistakes] if
// that needs a restart of the daemon.
func MakePlan(was, is *Config) (Plan, error) {
	var ms Mistakes
	if was.Control != is.Control {
		ms.add("control", "cannot change from %s to %s at run time; restart the daemon", was.Control, is.Control)
	}
	if was.MetricsListen != is.MetricsListen {
		ms.add("metrics_listen", "cannot change from %q to %q at run time; restart the daemon",
			was.MetricsListen, is.MetricsListen)
	}
	if was.Sandbox != is.Sandbox {
		ms.add("sandbox", "cannot change from %t to %t at run time; restart the daemon", was.Sandbox, is.Sandbox)
	}
	if len(ms) > 0 {
		return Plan{}, ms
	}
	var p Plan
	rebuilt := map[string]bool{}
	p.Devices = steps(was.Devices, is.Devices, func(d *Device) string { return d.Name }, func(s *Step[Device]) Change {
		c := change(s.Fields, liveDevice)
		// An HCA uses either IP multicast or replication as long as it is open.
		if slices.Contains(s.Fields, "peers") && (len(s.Was.Peers) == 0) != (len(s.Is.Peers) == 0) {
			c = Rebuilt
		}
		rebuilt[s.Name] = c == Rebuilt
		return c
	})
	name := func(f *Interface) string { return f.Name }
	p.Interfaces = steps(was.Interfaces, is.Interfaces, name, func(s *Step[Interface]) Change {
		if rebuilt[s.Is.Device] && !slices.Contains(s.Fields, "device") {
			s.Fields = append(s.Fields, "device")
		}
		return change(s.Fields, liveInterface)
	})
	return p, nil
}

// steps compares two lists by the names of their elements.
func steps[T Device | Interface](was, is []T, name func(*T) string, judge func(*Step[T]) Change) (out []Step[T]) {
	find := func(list []T, want string) int {
		return slices.IndexFunc(list, func(x T) bool { return name(&x) == want })
	}
	for _, x := range is {
		s := Step[T]{Name: name(&x), Change: Added, Is: x}
		if i := find(was, s.Name); i >= 0 {
			s.Was = was[i]
			s.Fields = differing(reflect.ValueOf(s.Was), reflect.ValueOf(x))
			s.Change = judge(&s)
		}
		out = append(out, s)
	}
	for _, x := range was {
		if find(is, name(&x)) < 0 {
			out = append(out, Step[T]{Name: name(&x), Change: Removed, Was: x})
		}
	}
	return out
}

// change returns Kept without differing fields, Changed if all of them are live, and else Rebuilt.
func change(differ, live []string) Change {
	switch {
	case len(differ) == 0:
		return Kept
	case slices.ContainsFunc(differ, func(f string) bool { return !slices.Contains(live, f) }):
		return Rebuilt
	}
	return Changed
}

// differing returns the names of the fields that differ. An empty list equals one that is not set.
func differing(was, is reflect.Value) (names []string) {
	for _, f := range reflect.VisibleFields(was.Type()) {
		a, b := was.FieldByIndex(f.Index), is.FieldByIndex(f.Index)
		tag := f.Tag.Get("yaml")
		empty := a.Kind() == reflect.Slice && a.Len()+b.Len() == 0
		if tag != "" && !empty && !reflect.DeepEqual(a.Interface(), b.Interface()) {
			names = append(names, tag)
		}
	}
	return names
}

// Claims reports whether two devices cannot be open at the same time, because both need the same
// HCA or the same netdev.
func (d *Device) Claims(other *Device) bool {
	mine, theirs := lookUp(d.HCA), lookUp(other.HCA)
	if mine.kind != theirs.kind || mine.claim == nil {
		return false
	}
	_, a := mine.claim(d)
	_, b := theirs.claim(other)
	return a == b
}
