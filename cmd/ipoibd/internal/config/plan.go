package config

import (
	"fmt"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
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

// MakePlan returns the plan from one valid configuration to another. It returns [Mistakes] if
// that needs a restart of the daemon.
func MakePlan(was, is *Config) (Plan, error) {
	var ms Mistakes
	for _, f := range Fields {
		if !f.Live && !f.same(was, is) {
			ms.add(f.Name, "cannot change from %s to %s at run time; restart the daemon", shown(f.Of(was)), shown(f.Of(is)))
		}
	}
	if len(ms) > 0 {
		return Plan{}, ms
	}
	var p Plan
	rebuilt := map[string]bool{}
	named := func(d *Device) string { return d.Name }
	p.Devices = steps(DeviceFields, was.Devices, is.Devices, named, func(s *Step[Device]) Change {
		c := DeviceFields.change(s.Fields)
		// An HCA uses either IP multicast or replication as long as it is open.
		if slices.Contains(s.Fields, "peers") && (len(s.Was.Peers) == 0) != (len(s.Is.Peers) == 0) {
			c = Rebuilt
		}
		rebuilt[s.Name] = c == Rebuilt
		return c
	})
	name := func(f *Interface) string { return f.Name }
	p.Interfaces = steps(InterfaceFields, was.Interfaces, is.Interfaces, name, func(s *Step[Interface]) Change {
		if rebuilt[s.Is.Device] && !slices.Contains(s.Fields, "device") {
			s.Fields = append(s.Fields, "device")
		}
		return InterfaceFields.change(s.Fields)
	})
	return p, nil
}

// shown returns the value that v points to, as messages show it: in quotes if it is a string other than a path.
func shown(v any) string {
	if s, ok := v.(*string); ok && !filepath.IsAbs(*s) {
		return strconv.Quote(*s)
	}
	return fmt.Sprint(reflect.ValueOf(v).Elem())
}

// steps compares two lists by the names of their elements.
func steps[T Device | Interface](
	table Table[T], was, is []T, name func(*T) string, judge func(*Step[T]) Change,
) (out []Step[T]) {
	find := func(list []T, want string) int {
		return slices.IndexFunc(list, func(x T) bool { return name(&x) == want })
	}
	for _, x := range is {
		s := Step[T]{Name: name(&x), Change: Added, Is: x}
		if i := find(was, s.Name); i >= 0 {
			s.Was = was[i]
			s.Fields = table.differing(&s.Was, &x)
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
