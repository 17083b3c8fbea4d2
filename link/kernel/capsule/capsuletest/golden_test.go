package capsuletest

import (
	"reflect"
	"slices"
	"testing"
)

type inner struct {
	C []uint8 `json:"c"`
}

type first struct {
	A int              `json:"a"`
	B map[string]inner `json:"b"`
}

// What a later version does not understand of an earlier one's text is found, and nothing else.
func TestLost(t *testing.T) {
	text := written(t, reflect.TypeFor[first]())
	for _, c := range []struct {
		name  string
		zero  any
		want  []string
		fails bool
	}{
		{"the same", first{}, nil, false},
		{"a field more", struct {
			first
			D int `json:"d"`
		}{}, nil, false},
		{"a field less", struct {
			B map[string]inner `json:"b"`
		}{}, []string{"a"}, false},
		{"another name within", struct {
			A int `json:"a"`
			B map[string]struct {
				C []uint8 `json:"cc"`
			} `json:"b"`
		}{}, []string{"b.text.c"}, false},
		{"another type", struct {
			A string `json:"a"`
		}{}, nil, true},
		{"another meaning", struct {
			A float32          `json:"-"`
			B map[string]inner `json:"b"`
		}{}, []string{"a"}, false},
	} {
		got, err := lost([]byte(text), c.zero)
		if !slices.Equal(got, c.want) || (err != nil) != c.fails {
			t.Errorf("%s: lost %v, %v; want %v", c.name, got, err, c.want)
		}
	}
}

// Fields without a JSON name are found, however deep.
func TestUnnamed(t *testing.T) {
	type bad struct {
		Named    int                     `json:"named"`
		Omitted  int                     `json:"-"`
		List     []struct{ Deep *inner } `json:"list"`
		Nameless string
	}
	got := unnamed(reflect.TypeFor[bad](), "bad", map[reflect.Type]bool{})
	if want := []string{"bad.List.Deep", "bad.Nameless"}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}
