package backend

import "testing"

func TestGUIDIsStableAndUnique(t *testing.T) {
	seen := map[[8]byte]string{}
	for _, m := range []string{"a", "b", "ab"} {
		for _, n := range []string{"wg0", "wg1", "b"} {
			g := guidOf(m, n)
			if g != guidOf(m, n) || g[0]&3 != 0 || g == guidOf("", "") {
				t.Errorf("%s, %s: %s", m, n, g)
			}
			if other, twice := seen[g]; twice {
				t.Errorf("%s of %s,%s is also that of %s", g, m, n, other)
			}
			seen[g] = m + "," + n
		}
	}
	if g, err := hostGUID("wg0"); err != nil || g == [8]byte{} {
		t.Errorf("this machine: %s, %v", g, err)
	}
}
