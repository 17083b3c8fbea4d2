package link

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
)

// What Linux 6.12 prints on a little-endian machine, for which the tests are.
const (
	igmpText = "Idx\tDevice    : Count Querier\tGroup    Users Timer\tReporter\n" +
		"1\tlo        :     1      V3\n" +
		"\t\t\t\t010000E0     1 0:00000000\t\t0\n" +
		"12\tib0       :     2      V3\n" +
		"\t\t\t\tFB0000E0     1 0:00000000\t\t0\n" +
		"\t\t\t\t010000E0     1 0:00000000\t\t0\n" +
		"2\tbr0       :     1      V2\n" +
		"\t\t\t\t010101EF     2 1:0000009A\t\t1\n"
	igmp6Text = "1    lo              ff020000000000000000000000000001     1 0000000C 0\n" +
		"12   ib0             ff0200000000000000000001ff000007     1 00000004 0\n" +
		"12   ib0             ff020000000000000000000000000001     1 0000000C 0\n" +
		"2    br0             ff0500000000000000000000000000fb     3 00000004 0\n"
)

func TestParseGroups(t *testing.T) {
	for _, c := range []struct {
		parse func(string, []int) []netip.Addr
		text  string
		on    []int
		want  string
	}{
		{parseIGMP, igmpText, []int{12}, "224.0.0.251 224.0.0.1"},
		{parseIGMP, igmpText, []int{12, 2}, "224.0.0.251 224.0.0.1 239.1.1.1"},
		{parseIGMP, igmpText, []int{3}, ""},
		{parseIGMP, "", []int{12}, ""},
		{parseIGMP, "12\tib0\n\t\t\t\t010000E\n\t\t\t\t010000E00\n\t\t\t\t0100x0E0 1\n\n\t\n", []int{12}, ""},
		{parseIGMP6, igmp6Text, []int{12}, "ff02::1:ff00:7 ff02::1"},
		{parseIGMP6, igmp6Text, []int{12, 2}, "ff02::1:ff00:7 ff02::1 ff05::fb"},
		{parseIGMP6, igmp6Text, []int{3}, ""},
		{parseIGMP6, "12 ib0\n12 ib0 ff02\n12 ib0 xf020000000000000000000000000001\n", []int{12}, ""},
	} {
		var got []string
		for _, ip := range c.parse(c.text, c.on) {
			got = append(got, ip.String())
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("groups on %v: %v, want %s", c.on, got, c.want)
		}
	}
}

// No text makes a parser panic, nor another interface's groups appear.
func FuzzParseGroups(f *testing.F) {
	f.Add(igmpText)
	f.Add(igmp6Text)
	f.Fuzz(func(t *testing.T, text string) {
		for _, parse := range []func(string, []int) []netip.Addr{parseIGMP, parseIGMP6} {
			if got := parse(text, nil); len(got) > 0 {
				t.Errorf("groups on no interface: %v", got)
			}
			if some, all := parse(text, []int{12}), parse(text, []int{2, 12}); len(some) > len(all) ||
				slices.ContainsFunc(some, func(ip netip.Addr) bool { return !slices.Contains(all, ip) }) {
				t.Errorf("groups %v of %v", some, all)
			}
		}
	})
}
