package config

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"ipoibd/hca"
)

// twoByTwo is a valid configuration of two devices with two interfaces each.
func twoByTwo(tb interface{ Fatal(...any) }) *Config {
	c, err := Parse("x.yaml", []byte(`
control: /run/x.sock
metrics_listen: 127.0.0.1:9471
devices:
  - {name: a, underlay: eth0, pkeys: [0xffff, 0x8001], peers: [10.0.0.2]}
  - {name: b, device: mlx5_0}
interfaces:
  - {name: a0, device: a}
  - {name: a1, device: a, pkey: 0x8001}
  - {name: b0, device: b}
  - {name: b1, device: b, addresses: [10.9.0.1/24]}
`))
	if err != nil {
		tb.Fatal(err)
	}
	return c
}

// describe writes a plan on one line, without what is kept.
func describe(p Plan) string {
	var parts []string
	add := func(name string, c Change, fields []string) {
		if c != Kept {
			parts = append(parts, strings.TrimSpace(fmt.Sprintf("%s %s %s", name, c, strings.Join(fields, ","))))
		}
	}
	for _, s := range p.Devices {
		add(s.Name, s.Change, s.Fields)
	}
	for _, s := range p.Interfaces {
		add(s.Name, s.Change, s.Fields)
	}
	return strings.Join(parts, "; ")
}

// Each field either changes live, or has its device or interface rebuilt, and only that.
func TestPlanOfEachField(t *testing.T) {
	index := 3
	device := map[string]struct {
		change func(*Device)
		want   string
	}{
		"device":             {func(d *Device) { d.HCA = "mlx5_0" }, "rebuilt"},
		"underlay":           {func(d *Device) { d.Underlay = "eth1" }, "rebuilt"},
		"pkeys":              {func(d *Device) { d.PKeys = append(slices.Clone(d.PKeys), 0x8002) }, "changed"},
		"standard_mtu":       {func(d *Device) { d.StandardMTU = true }, "rebuilt"},
		"peers":              {func(d *Device) { d.Peers = []string{"10.0.0.3"} }, "changed"},
		"known_peers_only":   {func(d *Device) { d.KnownPeersOnly = true }, "rebuilt"},
		"lanes":              {func(d *Device) { d.Lanes = 2 }, "rebuilt"},
		"fast_path":          {func(d *Device) { d.FastPath = true }, "rebuilt"},
		"reset":              {func(d *Device) { d.Reset = ResetPCI }, "rebuilt"},
		"force":              {func(d *Device) { d.Force = true }, "rebuilt"},
		"coordinator":        {func(d *Device) { d.Coordinator = "/run/c" }, "rebuilt"},
		"grace":              {func(d *Device) { d.Grace = time.Second }, "rebuilt"},
		"give_up_after":      {func(d *Device) { d.GiveUpAfter = time.Minute }, "rebuilt"},
		"allow_other_device": {func(d *Device) { d.AllowOtherDevice = true }, "rebuilt"},
	}
	for _, field := range names(DeviceFields) {
		c, ok := device[field]
		if !ok && field != "name" {
			t.Errorf("device field %s has no case", field)
		}
		if !ok {
			continue
		}
		was, is := twoByTwo(t), twoByTwo(t)
		c.change(&is.Devices[0])
		want := "a " + c.want + " " + field
		if c.want == "rebuilt" {
			want += "; a0 rebuilt device; a1 rebuilt device"
		}
		if got := planOf(t, was, is); got != want {
			t.Errorf("device field %s: %q, want %q", field, got, want)
		}
	}
	iface := map[string]struct {
		change func(*Interface)
		want   string
	}{
		"device":       {func(f *Interface) { f.Device = "b" }, "rebuilt"},
		"port":         {func(f *Interface) { f.Port = 2 }, "rebuilt"},
		"pkey":         {func(f *Interface) { f.PKey = 0x8001 }, "rebuilt"},
		"gid":          {func(f *Interface) { f.GID = "fd00::1" }, "rebuilt"},
		"gid_index":    {func(f *Interface) { f.GIDIndex = &index }, "rebuilt"},
		"mtu":          {func(f *Interface) { f.MTU = 1300 }, "changed"},
		"addresses":    {func(f *Interface) { f.Addresses = []string{"10.9.0.2/24"} }, "changed"},
		"routes":       {func(f *Interface) { f.Routes = []string{"10.0.0.0/8"} }, "changed"},
		"up":           {func(f *Interface) { f.Up = true }, "changed"},
		"dhcp":         {func(f *Interface) { f.DHCP = DHCPRFC4390 }, "rebuilt"},
		"source_check": {func(f *Interface) { f.SourceCheck = true }, "changed"},
		"send_wrs":     {func(f *Interface) { f.SendWRs = 256 }, "rebuilt"},
		"recv_wrs":     {func(f *Interface) { f.RecvWRs = 256 }, "rebuilt"},
		"ebpf":         {func(f *Interface) { f.EBPF = false }, "rebuilt"},
		"follow":       {func(f *Interface) { f.Follow = true }, "changed"},
		"netns":        {func(f *Interface) { f.Netns = "/run/netns/pod" }, "rebuilt"},
		"netdev":       {func(f *Interface) { f.Netdev = "net1" }, "rebuilt"},
		"owner":        {func(f *Interface) { f.Owner = "pod" }, "rebuilt"},
	}
	for _, field := range names(InterfaceFields) {
		c, ok := iface[field]
		if !ok && field != "name" {
			t.Errorf("interface field %s has no case", field)
		}
		if !ok {
			continue
		}
		was, is := twoByTwo(t), twoByTwo(t)
		c.change(&is.Interfaces[0])
		if got, want := planOf(t, was, is), "a0 "+c.want+" "+field; got != want {
			t.Errorf("interface field %s: %q, want %q", field, got, want)
		}
	}
}

func names[T any](table Table[T]) (names []string) {
	for _, f := range table {
		names = append(names, f.Name)
	}
	return names
}

func planOf(t *testing.T, was, is *Config) string {
	t.Helper()
	p, err := MakePlan(was, is)
	if err != nil {
		t.Fatal(err)
	}
	return describe(p)
}

func TestPlans(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*Config)
		want   string
	}{
		"nothing":              {func(*Config) {}, ""},
		"empty list":           {func(c *Config) { c.Interfaces[0].Addresses = []string{} }, ""},
		"live and rebuilt":     {func(c *Config) { c.Interfaces[0].MTU, c.Interfaces[0].EBPF = 1300, false }, "a0 rebuilt mtu,ebpf"},
		"peers appear":         {func(c *Config) { c.Devices[1].Peers = []string{"10.0.0.9"} }, "b rebuilt peers; b0 rebuilt device; b1 rebuilt device"},
		"peers disappear":      {func(c *Config) { c.Devices[0].Peers = nil }, "a rebuilt peers; a0 rebuilt device; a1 rebuilt device"},
		"interface added":      {func(c *Config) { c.Interfaces = append(c.Interfaces, Interface{Name: "n", Device: "b"}) }, "n added"},
		"interface removed":    {func(c *Config) { c.Interfaces = c.Interfaces[1:] }, "a0 removed"},
		"interface renamed":    {func(c *Config) { c.Interfaces[0].Name = "x" }, "x added; a0 removed"},
		"order":                {func(c *Config) { slices.Reverse(c.Interfaces) }, ""},
		"moved to another one": {func(c *Config) { c.Interfaces[0].Device = "b" }, "a0 rebuilt device"},
		"device removed with its interfaces": {
			func(c *Config) { c.Devices, c.Interfaces = c.Devices[1:], c.Interfaces[2:] }, "a removed; a0 removed; a1 removed",
		},
		"device renamed": {
			func(c *Config) { c.Devices[0].Name, c.Interfaces[0].Device, c.Interfaces[1].Device = "n", "n", "n" },
			"n added; a removed; a0 rebuilt device; a1 rebuilt device",
		},
	} {
		was, is := twoByTwo(t), twoByTwo(t)
		c.change(is)
		if got := planOf(t, was, is); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// The path of the control socket cannot change while the daemon runs.
func TestPlanRefusesAnotherControlSocket(t *testing.T) {
	was, is := twoByTwo(t), twoByTwo(t)
	is.Control = "/run/y.sock"
	_, err := MakePlan(was, is)
	if want := "control: cannot change from /run/x.sock to /run/y.sock at run time; restart the daemon"; err == nil || err.Error() != want {
		t.Errorf("error %v, want %q", err, want)
	}
}

// apply changes a configuration by a plan, with the data of the plan alone.
func apply[T Device | Interface](t *rapid.T, was []T, plan []Step[T], name func(T) string) (is []T) {
	left := map[string]T{}
	for _, x := range was {
		left[name(x)] = x
	}
	for _, s := range plan {
		x, had := left[s.Name]
		delete(left, s.Name)
		if had == (s.Change == Added) {
			t.Fatalf("%s is %s, and was there: %t", s.Name, s.Change, had)
		}
		switch s.Change {
		case Kept:
			is = append(is, x)
		case Changed, Rebuilt, Added:
			is = append(is, s.Is)
		case Removed:
		}
	}
	if len(left) > 0 {
		t.Fatalf("the plan forgets %v", left)
	}
	return is
}

// A plan, applied to the configuration that it starts from, gives the one that it leads to. The
// plan back undoes it, and a second plan to the same configuration keeps everything. An interface
// is never kept on a device that is not.
func TestPlanLeadsToTheOther(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := anyConfig(t, "a"), anyConfig(t, "b")
		for range 2 {
			p, err := MakePlan(a, b)
			if err != nil {
				t.Fatal(err)
			}
			got := Config{
				Control:    a.Control,
				Devices:    apply(t, a.Devices, p.Devices, func(d Device) string { return d.Name }),
				Interfaces: apply(t, a.Interfaces, p.Interfaces, func(f Interface) string { return f.Name }),
			}
			if !reflect.DeepEqual(&got, b) {
				t.Fatalf("got  %+v\nwant %+v", got, *b)
			}
			stays := map[string]bool{}
			for _, s := range p.Devices {
				stays[s.Name] = s.Change == Kept || s.Change == Changed
			}
			for _, s := range p.Interfaces {
				if (s.Change == Kept || s.Change == Changed) && !stays[s.Is.Device] {
					t.Fatalf("%s is %s, but its device is not: %s", s.Name, s.Change, describe(p))
				}
			}
			if same, err := MakePlan(b, &got); err != nil || describe(same) != "" {
				t.Fatalf("the same again: %s, %v", describe(same), err)
			}
			a, b = b, a
		}
	})
}

// anyConfig draws a configuration of few names and few values, so that two of them have much in
// common. Lists that are empty are nil.
func anyConfig(t *rapid.T, label string) *Config {
	pick := func(what string, n int) int { return rapid.IntRange(0, n-1).Draw(t, label+" "+what) }
	c := &Config{Control: "/run/x.sock"}
	for _, name := range rapid.SliceOfDistinct(rapid.SampledFrom([]string{"a", "b", "c"}), rapid.ID[string]).Filter(func(s []string) bool { return len(s) > 0 }).Draw(t, label+" devices") {
		d := NewDevice()
		d.Name = name
		d.Underlay = []string{"eth0", "eth1"}[pick("underlay", 2)]
		d.PKeys = [][]hca.PKey{nil, {0xffff}, {0xffff, 0x8001}}[pick("pkeys", 3)]
		d.Peers = [][]string{nil, {"10.0.0.1"}, {"10.0.0.1", "10.0.0.2"}}[pick("peers", 3)]
		d.Lanes = 1 << pick("lanes", 2)
		c.Devices = append(c.Devices, d)
	}
	for _, name := range rapid.SliceOfDistinct(rapid.SampledFrom([]string{"ib0", "ib1", "ib2", "ib3"}), rapid.ID[string]).Draw(t, label+" interfaces") {
		f := NewInterface()
		f.Name, f.Device = name, c.Devices[pick("device", len(c.Devices))].Name
		f.MTU = []int{0, 1300}[pick("mtu", 2)]
		f.PKey = []hca.PKey{0xffff, 0x8001}[pick("pkey", 2)]
		f.Addresses = [][]string{nil, {"10.0.0.1/8"}}[pick("addresses", 2)]
		f.Up = pick("up", 2) == 1
		c.Interfaces = append(c.Interfaces, f)
	}
	return c
}

func TestClaims(t *testing.T) {
	soft := func(underlay string) *Device { d := NewDevice(); d.Underlay = underlay; return &d }
	real := func(name string) *Device { d := NewDevice(); d.HCA = name; return &d }
	for _, c := range []struct {
		a, b *Device
		want bool
	}{
		{soft("eth0"), soft("eth0"), true},
		{soft("eth0"), soft("eth1"), false},
		{real("mlx5_0"), real("mlx5_0"), true},
		{real("mlx5_0"), real("mlx5_1"), false},
		{soft("mlx5_0"), real("mlx5_0"), false},
	} {
		if got := c.a.Claims(c.b); got != c.want {
			t.Errorf("%s on %q and %s on %q: %t", c.a.HCA, c.a.Underlay, c.b.HCA, c.b.Underlay, got)
		}
	}
}
