package port

import (
	"errors"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"

	"ipoibd/hca"
)

func entry(addr string, payload int) hca.GIDEntry {
	return hca.GIDEntry{GID: hca.GIDFromAddr(netip.MustParseAddr(addr)), Type: hca.GIDTypeRoCEv2, MaxPayload: payload}
}

func attr(gids ...hca.GIDEntry) hca.PortAttr {
	return hca.PortAttr{
		State: hca.PortActive, MaxMTU: 4096, ActiveMTU: 2048, LinkLayer: hca.LinkLayerEthernet,
		GIDs: gids, PKeys: []hca.PKey{0xffff, 0x8001},
	}
}

func TestMakePlanChoosesGID(t *testing.T) {
	v4, v6, local := entry("10.0.0.1", 1448), entry("fd00::1", 1428), entry("fe80::1", 1428)
	for _, c := range []struct {
		name string
		gids []hca.GIDEntry
		want string // the configured GID
		gid  string
		err  error
	}{
		{"IPv4 first", []hca.GIDEntry{local, v6, v4}, "", "10.0.0.1", nil},
		{"then global IPv6", []hca.GIDEntry{local, {}, v6}, "", "fd00::1", nil},
		{"then link-local", []hca.GIDEntry{{}, local}, "", "fe80::1", nil},
		{"first of two", []hca.GIDEntry{v4, entry("10.0.0.2", 1448)}, "", "10.0.0.1", nil},
		{"a wish", []hca.GIDEntry{local, v6, v4}, "fd00::1", "fd00::1", nil},
		{"a configured GID that is missing", []hca.GIDEntry{local, v4}, "fd00::9", "", ErrNoGID},
		{"none", []hca.GIDEntry{{}}, "", "", ErrNoGID},
		{"a configured GID that is an empty entry", []hca.GIDEntry{{}, v4}, "::", "", ErrNoGID},
		{"too small", []hca.GIDEntry{entry("10.0.0.1", 579)}, "", "", ErrNoMTU},
		{"just large enough", []hca.GIDEntry{entry("10.0.0.1", 580)}, "", "10.0.0.1", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := Want{Port: 1, PKey: 0xffff}
			if c.want != "" {
				w.GID = netip.MustParseAddr(c.want)
			}
			p, err := MakePlan(attr(c.gids...), w)
			if !errors.Is(err, c.err) {
				t.Fatalf("error %v, want %v", err, c.err)
			}
			if err != nil {
				return
			}
			if p.GID.String() != c.gid && p.GID.Addr().String() != c.gid {
				t.Errorf("GID %s, want %s", p.GID, c.gid)
			}
			if c.gids[p.GIDIndex].GID != p.GID || p.MTU() != p.MaxPayload-4 {
				t.Errorf("the plan is inconsistent: %+v", p)
			}
		})
	}
}

func ofType(e hca.GIDEntry, typ hca.GIDType) hca.GIDEntry {
	e.Type = typ
	return e
}

// Only RoCE v2 is supported: a plan never uses an entry of another type, whether
// configured or not, and the error says so. A driver lists each address once for each
// type.
func TestMakePlanUsesOnlyRoCEv2(t *testing.T) {
	v4, v6 := entry("10.0.0.1", 1448), entry("fd00::1", 1428)
	old4 := ofType(v4, hca.GIDTypeRoCEv1)
	both := []hca.GIDEntry{ofType(v6, hca.GIDTypeRoCEv1), v6, old4, v4, {}}
	at := func(i int) *int { return &i }
	for _, c := range []struct {
		name string
		gids []hca.GIDEntry
		want Want
		idx  int
		err  error
	}{
		{"by rule", both, Want{}, 3, nil},
		{"by rule, IPv4 is v1", both[:3], Want{}, 1, nil},
		{"in use before", both, Want{InUse: v4.GID}, 3, nil},
		{"v1 alone", []hca.GIDEntry{{}, old4}, Want{}, 0, ErrGIDType},
		{"only v1 entries", []hca.GIDEntry{old4}, Want{}, 0, ErrNoGID},
		{"IB alone", []hca.GIDEntry{ofType(v6, hca.GIDTypeIB)}, Want{}, 0, ErrGIDType},
		{"by address", both, Want{GID: v6.GID.Addr()}, 1, nil},
		{"by address of v1", both[:3], Want{GID: v4.GID.Addr()}, 0, ErrGIDType},
		{"by index", both, Want{GIDIndex: at(1)}, 1, nil},
		{"by index of v1", both, Want{GIDIndex: at(0)}, 0, ErrGIDType},
		{"by index of an empty one", both, Want{GIDIndex: at(4)}, 0, ErrNoGID},
		{"by index outside the table", both, Want{GIDIndex: at(5)}, 0, ErrNoGID},
		{"by default, the last index", append(make([]hca.GIDEntry, 255), v4), Want{}, 255, nil},
		{"by default, beyond the last index", append(make([]hca.GIDEntry, 256), v4), Want{}, 0, ErrNoGID},
		{"by negative index", both, Want{GIDIndex: at(-1)}, 0, ErrNoGID},
	} {
		c.want.Port, c.want.PKey = 1, 0xffff
		p, err := MakePlan(attr(c.gids...), c.want)
		if !errors.Is(err, c.err) || p.GIDIndex != c.idx {
			t.Errorf("%s: index %d, %v; want %d, %v", c.name, p.GIDIndex, err, c.idx, c.err)
		}
	}
}

// The error explains why the requested GID cannot be used.
func TestNoGIDSaysWhy(t *testing.T) {
	outside := 9
	for want, w := range map[string]Want{
		"port has no usable GID: none is 10.9.0.2; 'ipoibd devices' lists them": {GID: netip.MustParseAddr("10.9.0.2")},
		"port has no usable GID: there is no index 9, the table has 1 entries":  {GIDIndex: &outside},
		"port has no usable GID: the netdev below it needs an IP address":       {},
	} {
		a := attr(entry("10.0.0.1", 1448))
		if reflect.DeepEqual(w, Want{}) {
			a.GIDs = nil
		}
		w.Port, w.PKey = 1, 0xffff
		if _, err := MakePlan(a, w); err == nil || err.Error() != want {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

// A GID in use is kept when an equally good one appears before it, and replaced by a
// better one.
func TestMakePlanKeepsGIDInUse(t *testing.T) {
	v4, other, v6 := entry("10.0.0.2", 1448), entry("10.0.0.1", 1448), entry("fd00::1", 1428)
	for _, c := range []struct {
		name       string
		gids       []hca.GIDEntry
		inUse, gid hca.GID
	}{
		{"an equally good one before", []hca.GIDEntry{other, v4}, v4.GID, v4.GID},
		{"an equally good one after", []hca.GIDEntry{v4, other}, v4.GID, v4.GID},
		{"a better one", []hca.GIDEntry{v6, v4}, v6.GID, v4.GID},
		{"gone", []hca.GIDEntry{other, v6}, v4.GID, other.GID},
	} {
		p, err := MakePlan(attr(c.gids...), Want{Port: 1, PKey: 0xffff, InUse: c.inUse})
		if err != nil || p.GID != c.gid {
			t.Errorf("%s: %s, %v; want %s", c.name, p.GID, err, c.gid)
		}
	}
}

// The MTU that the error demands is sufficient, also for a port that has only the
// standard MTUs.
func TestTooSmallSaysWhatIsNeeded(t *testing.T) {
	for payload, want := range map[int]string{
		0: "1024 are required: raise the underlay's MTU by 1024", 512: "1024 are required: raise the underlay's MTU by 512",
		248: "580 are required: raise the underlay's MTU by 332", 576: "580 are required: raise the underlay's MTU by 4",
	} {
		_, err := MakePlan(attr(entry("10.0.0.1", payload)), Want{Port: 1, PKey: 0xffff})
		if err == nil || !strings.HasSuffix(err.Error(), want) {
			t.Errorf("%d bytes: %v, want an error that ends with %s", payload, err, want)
		}
	}
}

// The narrowest path limits what is sent, but not what peers may send, and not below what an
// interface needs.
func TestPlanMTU(t *testing.T) {
	to := netip.MustParseAddr("10.0.0.2")
	for _, c := range []struct {
		path          hca.PathLimit
		mtu, fits, no int // no: an MTU that does not fit; 0: all fit
	}{
		{hca.PathLimit{}, 1444, 1444, 0},
		{hca.PathLimit{To: to, MTU: 1400, Carries: 1348, MaxPayload: 1348}, 1344, 1344, 1345},
		{hca.PathLimit{To: to, MTU: 1300, Carries: 1248, MaxPayload: 1284}, 1280, 1244, 1280},
		{hca.PathLimit{To: to, MTU: 500, Carries: 448, MaxPayload: 448}, 576, 444, 576},
	} {
		g := entry("10.0.0.1", 1448)
		g.Path = c.path
		p, err := MakePlan(attr(g), Want{Port: 1, PKey: 0xffff})
		if err != nil || p.MTU() != c.mtu || p.ReceiveMTU() != 1444 || !p.Fits(c.fits) || c.no != 0 && p.Fits(c.no) {
			t.Errorf("path %+v: %v, MTU %d, of peers %d, %d fits: %t, %d fits: %t", c.path, err, p.MTU(), p.ReceiveMTU(), c.fits, p.Fits(c.fits), c.no, p.Fits(c.no))
		}
	}
}

// Equal compares every field, SameQP all except the MTUs.
func TestSameQP(t *testing.T) {
	p, err := MakePlan(attr(entry("10.0.0.1", 1448)), Want{Port: 1, PKey: 0xffff})
	if err != nil {
		t.Fatal(err)
	}
	group := func(change func(*Group)) func(*Plan) {
		return func(p *Plan) {
			p.Groups = slices.Clone(p.Groups)
			change(&p.Groups[0])
		}
	}
	cases := map[string]struct {
		change func(*Plan)
		same   bool
	}{
		"Port":       {func(p *Plan) { p.Port++ }, false},
		"PKeyIndex":  {func(p *Plan) { p.PKeyIndex++ }, false},
		"PKey":       {func(p *Plan) { p.PKey-- }, false},
		"Limited":    {func(p *Plan) { p.Limited = true }, false},
		"GIDIndex":   {func(p *Plan) { p.GIDIndex++ }, false},
		"GID":        {func(p *Plan) { p.GID[15]++ }, false},
		"LID":        {func(p *Plan) { p.LID++ }, false},
		"LMC":        {func(p *Plan) { p.LMC++ }, false},
		"MaxPayload": {func(p *Plan) { p.MaxPayload = 4096 }, true},
		"Path":       {func(p *Plan) { p.Path.MTU = 1400 }, true},
		"PortMTU":    {func(p *Plan) { p.PortMTU = 256 }, true},
		"Groups":     {group(func(g *Group) { g.QKey++ }), false},
	}
	for _, f := range reflect.VisibleFields(reflect.TypeFor[Plan]()) {
		c, ok := cases[f.Name]
		if !ok {
			t.Errorf("no case for field %s", f.Name)
			continue
		}
		q := p
		c.change(&q)
		if p.SameQP(q) != c.same || q.SameQP(p) != c.same || p.Equal(q) || q.Equal(p) {
			t.Errorf("%s changed: same QP is %t, equal is %t", f.Name, p.SameQP(q), p.Equal(q))
		}
	}
	for name, change := range map[string]func(*Plan){
		"Attach":       group(func(g *Group) { g.Attach[15]++ }),
		"a new group":  func(p *Plan) { p.Groups = append(slices.Clone(p.Groups), Group{QKey: QKey}) },
		"without them": func(p *Plan) { p.Groups = nil },
	} {
		q := p
		if change(&q); p.SameQP(q) || q.SameQP(p) {
			t.Errorf("%s: SameQP is true", name)
		}
	}
	if q := p; !p.SameQP(q) || !p.Equal(q) {
		t.Error("a plan is not equal to itself")
	}
}

func TestMakePlanNeedsPortAndPKey(t *testing.T) {
	a := attr(entry("10.0.0.1", 1448))
	if p, err := MakePlan(a, Want{Port: 1, PKey: 0x8001}); err != nil || p.PKeyIndex != 1 {
		t.Errorf("P_Key index %d, %v; want 1", p.PKeyIndex, err)
	}
	if _, err := MakePlan(a, Want{Port: 1, PKey: 0x8002}); !errors.Is(err, ErrNoPKey) {
		t.Errorf("a P_Key that the port lacks: %v", err)
	}
	a.State = hca.PortDown
	if _, err := MakePlan(a, Want{Port: 1, PKey: 0xffff}); !errors.Is(err, ErrDown) {
		t.Errorf("port down: %v, want %v", err, ErrDown)
	}
}

// A table may have a partition twice.
func TestMakePlanPrefersFullMembership(t *testing.T) {
	for _, c := range []struct {
		table   []hca.PKey
		index   uint16
		limited bool
		err     error
	}{
		{[]hca.PKey{0x7fff, 0, 0xffff}, 2, false, nil},
		{[]hca.PKey{0xffff, 0x7fff}, 0, false, nil},
		{[]hca.PKey{0x7ffe, 0x7fff}, 1, true, nil},
		{[]hca.PKey{0x7ffe}, 0, false, ErrNoPKey},
		{nil, 0, false, ErrNoPKey},
	} {
		a := attr(entry("10.0.0.1", 1448))
		a.PKeys = c.table
		if p, err := MakePlan(a, Want{Port: 1, PKey: 0xffff}); p.PKeyIndex != c.index || p.Limited != c.limited || !errors.Is(err, c.err) {
			t.Errorf("%x: index %d, limited %t, %v; want %d, %t, %v", c.table, p.PKeyIndex, p.Limited, err, c.index, c.limited, c.err)
		}
	}
}

// The constants that replace a subnet manager's values are visible on the wire: all
// members must use the same ones.
func TestBroadcastGroup(t *testing.T) {
	for _, c := range []struct{ gid, mgid, attach string }{
		{"10.0.0.1", "ff12:401b:ffff::ffff:ffff", "239.192.18.183"},
		{"fd00::1", "ff12:401b:ffff::ffff:ffff", "ff12:401b:ffff::ffff:ffff"},
	} {
		p, err := MakePlan(attr(entry(c.gid, 1448)), Want{Port: 1, PKey: 0xffff})
		if err != nil {
			t.Fatal(err)
		}
		g := p.Broadcast()
		if g.MGID.Addr() != netip.MustParseAddr(c.mgid) || g.Attach.Addr() != netip.MustParseAddr(c.attach) || g.QKey != 0x0b1b {
			t.Errorf("%s: %+v, want %s attached as %s", c.gid, g, c.mgid, c.attach)
		}
		ah := p.GroupAH(g)
		if ah.DGID != g.Attach || !ah.Global || ah.SGIDIndex != p.GIDIndex || ah.HopLimit != 1 {
			t.Errorf("%s: AH %+v, want one to the attached group", c.gid, ah)
		}
	}
}

// A queue pair can be kept if only groups other than the broadcast group differ.
func TestSameExceptGroups(t *testing.T) {
	p, err := MakePlan(attr(entry("10.0.0.1", 1448)), Want{Port: 1, PKey: 0xffff})
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		change func(*Plan)
		same   bool
	}{
		"nothing":             {func(*Plan) {}, true},
		"another group":       {func(q *Plan) { q.Groups = append(slices.Clone(q.Groups), Group{QKey: QKey}) }, true},
		"the MTU":             {func(q *Plan) { q.MaxPayload = 4096 }, true},
		"the broadcast group": {func(q *Plan) { q.Groups = []Group{{MGID: hca.GID{0xff}, QKey: QKey}} }, false},
		"its Q_Key": {func(q *Plan) {
			q.Groups = slices.Clone(q.Groups)
			q.Groups[0].QKey++
		}, true},
		"no group":  {func(q *Plan) { q.Groups = nil }, false},
		"the GID":   {func(q *Plan) { q.GID[15]++ }, false},
		"the P_Key": {func(q *Plan) { q.PKey-- }, false},
	} {
		q := p
		c.change(&q)
		if p.SameExceptGroups(q) != c.same || q.SameExceptGroups(p) != c.same {
			t.Errorf("%s: want %t", name, c.same)
		}
		q.PKeyIndex++ // besides
		if p.SameExceptGroups(q) || p.SameExceptPKeyIndex(q) != c.same || q.SameExceptPKeyIndex(p) != c.same {
			t.Errorf("%s, and the P_Key index: want %t", name, c.same)
		}
	}
}
