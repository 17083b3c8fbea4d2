package config

import (
	"reflect"
	"slices"
	"testing"
)

// Each setting has a row that points to it, by the name that it has in the state that a daemon hands over, and no
// other. A daemon does not hand over whether it is in the sandbox, and Added is no setting.
func TestEachFieldHasARow(t *testing.T) {
	checkRows(t, Fields, "sandbox", "-", "added")
	checkRows(t, DeviceFields)
	checkRows(t, InterfaceFields)
}

// checkRows compares the rows with the fields of a struct, except some names.
func checkRows[T any](t *testing.T, table Table[T], except ...string) {
	t.Helper()
	var x T
	rows := map[string]any{}
	for _, f := range table {
		if rows[f.Name] != nil {
			t.Errorf("%T has two rows for %s", x, f.Name)
		}
		rows[f.Name] = f.Of(&x)
	}
	v := reflect.ValueOf(&x).Elem()
	for _, f := range reflect.VisibleFields(v.Type()) {
		name := f.Tag.Get("json")
		if f.Anonymous || slices.Contains(except, name) {
			continue
		}
		if rows[name] == nil {
			t.Errorf("%T.%s has no row", x, f.Name)
		} else if reflect.ValueOf(rows[name]).Pointer() != v.FieldByIndex(f.Index).Addr().Pointer() {
			t.Errorf("the row %s of %T is not of %s", name, x, f.Name)
		}
		delete(rows, name)
	}
	for name := range rows {
		if !slices.Contains(except, name) {
			t.Errorf("the row %s of %T is of no field", name, x)
		}
	}
}
