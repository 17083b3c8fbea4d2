package verbs

import (
	"slices"
	"testing"

	"ipoibd/hca"
)

func TestParseDevMcast(t *testing.T) {
	const text = `2    eth0            1     0     01005e000001
5    ib0             1     0     00ffffffff12401bffff000000000000000000fb
6    ib0.8001        1     0     00ffffffff12601b8001000000000000000001
6    ib1             2     0     00ffffffff12401bffff00000000000000000001
7    ib1             1     0     00ffffffff12401bffff000000000000000000fb
8    odd             1     0     00fffffzff12401bffff000000000000000000fb
9    short
`
	want := []hca.GID{
		{0xff, 0x12, 0x40, 0x1b, 0xff, 0xff, 15: 1},
		{0xff, 0x12, 0x40, 0x1b, 0xff, 0xff, 15: 0xfb},
	}
	if got := parseDevMcast(text); !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}
