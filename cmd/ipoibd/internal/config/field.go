package config

import (
	"reflect"
	"slices"
)

// Field describes a field of a file, except for its use. From this row alone, [Parse] reads the field, Validate checks
// it, [MakePlan] compares it, and 'ipoibd run' makes its flag and variable. docs/config.md is made from it as well,
// except for the conditions in its last column.
type Field[T any] struct {
	Name    string               // in a file
	Of      func(*T) any         // points to its value
	Live    bool                 // it can change at run time, without a rebuild or a restart
	Only    Kind                 // the only kind of HCA with this field; empty: both kinds
	Flag    string               // empty: none
	Help    string               // of the flag, and in docs/config.md
	Default string               // in words, if the value in a new T does not say it
	check   func(x *T, at place) // nil: every value is valid
}

// judge adds the mistakes in the field.
func (f *Field[T]) judge(x *T, m place) {
	if f.check != nil {
		f.check(x, m)
	}
}

// Copy copies the value of the field from one T to another.
func (f *Field[T]) Copy(to, from *T) {
	reflect.ValueOf(f.Of(to)).Elem().Set(reflect.ValueOf(f.Of(from)).Elem())
}

// same reports whether the field has the same value in two T. An empty list equals one that is not set.
func (f *Field[T]) same(a, b *T) bool {
	x, y := reflect.ValueOf(f.Of(a)).Elem(), reflect.ValueOf(f.Of(b)).Elem()
	return x.Kind() == reflect.Slice && x.Len()+y.Len() == 0 || reflect.DeepEqual(x.Interface(), y.Interface())
}

// Table lists the fields of T in the order of the documentation.
type Table[T any] []Field[T]

// differing returns the names of the fields that differ.
func (t Table[T]) differing(a, b *T) (names []string) {
	for _, f := range t {
		if !f.same(a, b) {
			names = append(names, f.Name)
		}
	}
	return names
}

// change returns Kept if no fields differ, Changed if all that differ are live, and Rebuilt otherwise.
func (t Table[T]) change(differ []string) Change {
	switch {
	case len(differ) == 0:
		return Kept
	case slices.ContainsFunc(t, func(f Field[T]) bool { return !f.Live && slices.Contains(differ, f.Name) }):
		return Rebuilt
	}
	return Changed
}

// flag returns the flag of a field, or "".
func (t Table[T]) flag(name string) string {
	if i := slices.IndexFunc(t, func(f Field[T]) bool { return f.Name == name }); i >= 0 {
		return t[i].Flag
	}
	return ""
}
