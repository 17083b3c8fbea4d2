package config

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"ipoibd/hca"
)

const example = `
control: /run/x.sock
metrics_listen: '[::1]:9471'
devices:
  - name: soft0
    underlay: eth0
    pkeys: [0xffff, 0x8001]
    standard_mtu: true
    peers: [10.0.0.2, fd00::2, nodes.example.org]
    known_peers_only: true
    coordinator: /run/ipoibd/soft0
    grace: 30s
    give_up_after: 1h30m
    allow_other_device: true
interfaces:
  - name: ib0
    device: soft0
  - name: ib0.8001
    device: soft0
    pkey: 0x0001
    gid: fd00::1
    addresses: [10.9.0.1/24, fd09::1/64]
    routes: [10.0.0.0/8 via 10.9.0.254]
    up: true
    mtu: 2044
    send_wrs: 128
    recv_wrs: 256
    ebpf: false
`

func TestParseExample(t *testing.T) {
	c, err := Parse("x.yaml", []byte(example))
	if err != nil {
		t.Fatal(err)
	}
	first := NewInterface()
	first.SendWRs, first.RecvWRs = 128, 128
	first.Device = "soft0"
	want := &Config{
		Control: "/run/x.sock", MetricsListen: "[::1]:9471", Sandbox: true,
		Devices: []Device{{
			Name: "soft0", HCA: SoftHCA, Reset: ResetNone,
			Soft: Soft{
				Underlay: "eth0", PKeys: []hca.PKey{0xffff, 0x8001}, StandardMTU: true,
				Peers: []string{"10.0.0.2", "fd00::2", "nodes.example.org"}, KnownPeersOnly: true, Lanes: 1,
			},
			Coordinator: "/run/ipoibd/soft0", Grace: 30 * time.Second, GiveUpAfter: 90 * time.Minute, AllowOtherDevice: true,
		}},
		Interfaces: []Interface{first, {
			Name: "ib0.8001", Device: "soft0", Port: 1, PKey: 0x8001, GID: "fd00::1", MTU: 2044, SendWRs: 128, RecvWRs: 256,
			Addresses: []string{"10.9.0.1/24", "fd09::1/64"}, Routes: []string{"10.0.0.0/8 via 10.9.0.254"}, Up: true,
		}},
	}
	if !reflect.DeepEqual(c, want) {
		t.Errorf("got  %+v\nwant %+v", c, want)
	}
}

// A device without a name has that of its HCA. An interface without a device uses the only one.
func TestParseRealHCA(t *testing.T) {
	c, err := Parse("x.yaml", []byte("interfaces:\n  - {name: ib0, port: 2, gid_index: 3}\ndevices:\n  - {device: mlx5_0, reset: pci}\n"))
	if err != nil {
		t.Fatal(err)
	}
	want := NewDevice()
	want.Name, want.HCA, want.Reset = "mlx5_0", "mlx5_0", ResetPCI
	if d := c.Devices[0]; !reflect.DeepEqual(d, want) {
		t.Errorf("got  %+v\nwant %+v", d, want)
	}
	if f := c.Interfaces[0]; f.Device != "mlx5_0" || f.Port != 2 || f.GIDIndex == nil || *f.GIDIndex != 3 {
		t.Errorf("%+v", f)
	}
}

func TestMistakesHaveLineAndField(t *testing.T) {
	const head = "devices:\n  - name: d\n    underlay: eth0\ninterfaces:\n  - name: ib0\n    device: d\n"
	for _, c := range []struct{ name, text, want string }{
		{"syntax", "a: [", "x.yaml:2: did not find expected node content"},
		{"tab", head + "\tmtu: 5\n", "x.yaml:7: the line is indented by a tab; use spaces"},
		{"tab after spaces", head + "  \t  mtu: 5\n", "x.yaml:7: the line is indented by a tab; use spaces"},
		{"tab before a list", "interfaces:\n\t- name: ib0\n", "x.yaml:2: the line is indented by a tab; use spaces"},
		{"tab in a list", "interfaces:\n-\tname: ib0\n", "x.yaml:2: the line is indented by a tab; use spaces"},
		{"tab in a value", head + "    gid: \"a\tb\"\n", `x.yaml:7: interfaces[0].gid: "a\tb" is not`},
		{"empty", "", "x.yaml: the file is empty"},
		{"not a mapping", "- a", "x.yaml:1: must be a mapping"},
		{"unknown top", head + "controll: x\n", "x.yaml:7: controll: unknown field; did you mean control?"},
		{"unknown", head + "    mut: 5\n", "x.yaml:7: interfaces[0].mut: unknown field; did you mean mtu?"},
		{"unknown and unlike any", head + "    colour: red\n", "x.yaml:7: interfaces[0].colour: unknown field; known are name, device, port, pkey, gid, gid_index, mtu, addresses, routes, up, source_check, dhcp, send_wrs, recv_wrs"},
		{"dashes for underscores", "devices:\n  - known-peers-only: true\n", "x.yaml:2: devices[0].known-peers-only: unknown field; did you mean known_peers_only?"},
		{"two documents", head + "---\ndevices: []\n", "x.yaml: a second document begins on line 7"},
		{"broken second document", head + "---\na: [", "x.yaml:9: did not find expected node content"},
		{"number", head + "    mtu: many\n", "x.yaml:7: interfaces[0].mtu: must be a whole number"},
		{"small number", head + "    port: 256\n", "x.yaml:7: interfaces[0].port: must be a whole number from 0 to 255"},
		{"text", head + "    gid: [a]\n", "x.yaml:7: interfaces[0].gid: must be a string"},
		{"texts", "devices:\n  - peers: 10.0.0.1\n", "x.yaml:2: devices[0].peers: must be a list of strings"},
		{"truth", "devices:\n  - standard_mtu: maybe\n", "x.yaml:2: devices[0].standard_mtu: must be true or false"},
		{"control", "control: ''\n" + head, `x.yaml:1: control: "" is not an absolute path of at most 107 bytes`},
		{"abstract control", "control: '@a'\n" + head, `x.yaml:1: control: "@a" is not an absolute path`},
		{"metrics without port", "metrics_listen: 127.0.0.1\n" + head, `x.yaml:1: metrics_listen: "127.0.0.1" is not an IP address, or localhost, with a port`},
		{"metrics on port 0", "metrics_listen: 127.0.0.1:0\n" + head, `x.yaml:1: metrics_listen: "127.0.0.1:0" is not`},
		{"metrics on a port too large", "metrics_listen: '[::1]:65536'\n" + head, `x.yaml:1: metrics_listen: "[::1]:65536" is not`},
		{"metrics on a name", "metrics_listen: host.example:9471\n" + head, `x.yaml:1: metrics_listen: "host.example:9471" is not`},
		{"relative control", "control: run/c\n" + head, `x.yaml:1: control: "run/c" is not an absolute path`},
		{"relative coordinator", "devices:\n  - {name: soft, coordinator: ./c}\ninterfaces: [{name: ib0}]", `x.yaml:2: devices[0].coordinator: "./c" is not the absolute path of a directory`},
		{"three lanes", "devices:\n  - {name: soft, lanes: 3}\ninterfaces: [{name: ib0}]", "x.yaml:2: devices[0].lanes: 3 is not 1, 2, 4 or 8"},
		{"sixteen lanes", "devices:\n  - {name: soft, lanes: 16}\ninterfaces: [{name: ib0}]", "x.yaml:2: devices[0].lanes: 16 is not 1, 2, 4 or 8"},
		{"lanes of a real HCA", "devices:\n  - {device: mlx5_0, lanes: 2}\ninterfaces: [{name: ib0}]", "x.yaml:2: devices[0].lanes: applies only to the software HCA"},
		{"no lanes of a real HCA", "devices:\n  - {device: mlx5_0, lanes: -1}\ninterfaces: [{name: ib0}]", "x.yaml:2: devices[0].lanes: applies only to the software HCA"},
		{"template", "interfaces:\n  - name: ib%d\n    device: soft\ndevices: [{name: soft}]", `x.yaml:2: interfaces[0].name: "ib%d" is not`},
		{"range", head + "    mtu: 4093\n", "x.yaml:7: interfaces[0].mtu: 4093 is out of range (68 to 4092)"},
		{"pkey", head + "    pkey: 0x8000\n", `x.yaml:7: interfaces[0].pkey: "0x8000" is not a P_Key`},
		{"twice", head + "    mtu: 1500\n    mtu: 1400\n", "x.yaml:7: interfaces[0].mtu: is set twice, again on line 8"},
		{"null", head + "  -\n", "x.yaml:7: interfaces[1]: is empty; remove it, or write {} for the defaults"},
		{"itself", head + "  - name: eth0\n    device: d\n", `x.yaml:3: devices[0].underlay: eth0 is an interface of this daemon`},
		{"foreign pkey", head + "    pkey: 0x8002\n", `x.yaml:7: interfaces[0].pkey: 0x8002 is not among the pkeys of device "d"`},
		{"port", head + "    port: 0\n", "x.yaml:7: interfaces[0].port: ports are numbered from 1"},
		{"gid", head + "    gid: here\n", `x.yaml:7: interfaces[0].gid: "here" is not the IPv4 or IPv6 address of a host`},
		{"receive queue", head + "    recv_wrs: 63\n", "x.yaml:7: interfaces[0].recv_wrs: 63 is out of range (64 to 16384)"},
		{"send queue", head + "    send_wrs: 127\n", "x.yaml:7: interfaces[0].send_wrs: 127 is out of range (128 to 16384)"},
		{"name", head + "  - name: a/b\n    device: d\n", `x.yaml:7: interfaces[1].name: "a/b" is not`},
		{"same name", head + "  - name: ib0\n    device: d\n", `x.yaml:7: interfaces[1].name: another interface is named "ib0"`},
		{"no device", head + "  - name: ib1\n    device: e\n", `x.yaml:8: interfaces[1].device: no device "e" is configured`},
		{"no interface", "devices: [{name: soft}]", "x.yaml:1: interfaces: none"},
		{"no devices", "interfaces:\n  - name: ib0\n", "x.yaml:1: devices: none configured; add one, such as {underlay: eth0}"},
		{"which device", "devices:\n  - {name: a, underlay: a}\n  - {name: b, underlay: b}\ninterfaces:\n  - name: ib0\n", `x.yaml:5: interfaces[0].device: no device "soft" is configured; choose`},
		{"list", "devices: 5", "x.yaml:1: devices: must be a list"},
		{"pkeys", "devices:\n  - pkeys: 5", "x.yaml:2: devices[0].pkeys: must be a list"},
		{"known peers", "devices:\n  - name: soft\n    known_peers_only: true\ninterfaces: [{name: ib0}]", "x.yaml:3: devices[0].known_peers_only: needs peers"},
		{"peer", "devices:\n  - name: soft\n    peers: ['a b']\ninterfaces: [{name: ib0}]", `x.yaml:3: devices[0].peers[0]: "a b" is neither`},
		{"underlay shared", "devices:\n  - {name: a, underlay: e}\n  - {name: b, underlay: e}\ninterfaces: [{name: ib0, device: a}]", `x.yaml:3: devices[1].underlay: device "a" uses this netdev already`},
		{"HCA", "devices:\n  - {name: a, device: a/b}\ninterfaces: [{name: ib0}]", `x.yaml:2: devices[0].device: "a/b" is neither soft nor`},
		{"no HCA", "devices:\n  - {device: ''}\ninterfaces: [{name: ib0}]", `x.yaml:2: devices[0].device: "" is neither soft nor`},
		{"HCA no text", "devices:\n  - {name: a, device: !!binary /w==}\ninterfaces: [{name: ib0}]", `x.yaml:2: devices[0].device: "\xff" is neither soft nor`},
		{"HCA shared", "devices:\n  - {name: a, device: rxe0}\n  - {name: b, device: rxe0}\ninterfaces: [{name: ib0, device: a}]", `x.yaml:3: devices[1].device: device "a" uses this HCA already`},
		{"reset", "devices:\n  - {device: rxe0, reset: hard}\ninterfaces: [{name: ib0}]", `x.yaml:2: devices[0].reset: "hard" is not one of none`},
		{"force of soft", "devices:\n  - {name: soft, force: true}\ninterfaces: [{name: ib0}]", "x.yaml:2: devices[0].force: applies only to real HCAs"},
		{"reset of soft", "devices:\n  - {name: soft, reset: link}\ninterfaces: [{name: ib0}]", "x.yaml:2: devices[0].reset: applies only to real HCAs"},
		{"underlay of real", "devices:\n  - {device: rxe0, underlay: eth0}\ninterfaces: [{name: ib0}]", "x.yaml:2: devices[0].underlay: applies only to the software HCA"},
		{"lines of a list", "devices:\n  - name: soft\n    peers:\n      - 10.0.0.2\n      - a b\n    pkeys:\n      - 0xffff\n      - zero\ninterfaces: [{name: ib0}]", `x.yaml:8: devices[0].pkeys[1]: "zero" is not a P_Key`},
		{"line of an address", "devices: [{name: soft}]\ninterfaces:\n  - name: ib0\n    addresses:\n      - 10.9.0.1/24\n      - 10.9.0.2\n", `x.yaml:6: interfaces[0].addresses[1]: 10.9.0.2 has no prefix length`},
		{"line of a peer", "devices:\n  - name: soft\n    peers:\n      - 10.0.0.2\n      - a b\ninterfaces: [{name: ib0}]", `x.yaml:5: devices[0].peers[1]: "a b" is neither`},
		{"line of what is no string", "devices:\n  - name: soft\n    peers:\n      - 10.0.0.2\n      - [a]\ninterfaces: [{name: ib0}]", `x.yaml:5: devices[0].peers[1]: must be a string`},
		{"address twice", "devices: [{name: soft}]\ninterfaces:\n  - name: ib0\n    addresses:\n      - 10.9.0.1/24\n      - 10.9.0.1/24\n", `x.yaml:6: interfaces[0].addresses[1]: 10.9.0.1/24 is listed twice; once is enough`},
		{"address with two lengths", "devices: [{name: soft}]\ninterfaces:\n  - name: ib0\n    addresses: ['fd09::1/64', 'fd09:0::1/48']\n", `x.yaml:4: interfaces[0].addresses[1]: fd09:0::1/48 is listed already, as fd09::1/64; keep one of them`},
		{"destination twice", "devices: [{name: soft}]\ninterfaces:\n  - name: ib0\n    routes: [10.0.0.0/8, 10.0.0.0/8 via 10.9.0.254]\n", `x.yaml:4: interfaces[0].routes[1]: 10.0.0.0/8 via 10.9.0.254 is listed already, as 10.0.0.0/8; keep one of them`},
		{"peer that is a group", "devices:\n  - name: soft\n    peers: [10.0.0.2, 239.1.1.1]\ninterfaces: [{name: ib0}]", `x.yaml:3: devices[0].peers[1]: 239.1.1.1 cannot be a peer: it is a multicast address`},
		{"peer on any link", "devices:\n  - name: soft\n    peers: ['fe80::1']\ninterfaces: [{name: ib0}]", `x.yaml:3: devices[0].peers[0]: fe80::1 cannot be a peer: it is a link-local address without a zone`},
		{"peers of real", "devices:\n  - {device: rxe0, peers: [a]}\ninterfaces: [{name: ib0}]", "x.yaml:2: devices[0].peers: applies only to the software HCA"},
		{"pkeys of real", "devices:\n  - {device: rxe0, pkeys: []}\ninterfaces: [{name: ib0}]", "x.yaml:2: devices[0].pkeys: applies only to the software HCA"},
		{"no pkeys", "devices:\n  - {name: soft, pkeys: []}\ninterfaces: [{name: ib0}]", "x.yaml:2: devices[0].pkeys: needs 1 to 128"},
		{"port of soft", head + "    port: 2\n", `x.yaml:7: interfaces[0].port: device "d" is the software HCA`},
		{"GID index", head + "    gid_index: -1\n", "x.yaml:7: interfaces[0].gid_index: -1 is out of range (0 to 255)"},
		{"GID of a zone", head + "    gid: fe80::1%eth0\n", `x.yaml:7: interfaces[0].gid: "fe80::1%eth0" is not the IPv4 or IPv6 address of a host`},
		{"GID of a group", head + "    gid: 239.1.2.3\n", `x.yaml:7: interfaces[0].gid: "239.1.2.3" is not the IPv4 or IPv6 address of a host`},
		{"unspecified GID", head + "    gid: '::'\n", `x.yaml:7: interfaces[0].gid: "::" is not the IPv4 or IPv6 address of a host`},
		{"GID index text", head + "    gid_index: one\n", "x.yaml:7: interfaces[0].gid_index: must be a whole number"},
		{"GID twice", head + "    gid: fd00::1\n    gid_index: 1\n", "x.yaml:8: interfaces[0].gid_index: cannot be combined with gid"},
		{"duration", "devices:\n  - grace: 30\n", "x.yaml:2: devices[0].grace: must be a duration, such as 30s or 10m"},
		{"no duration", "devices:\n  - grace: [1s]\n", "x.yaml:2: devices[0].grace: must be a duration, such as 30s or 10m"},
		{"short grace", "devices:\n  - {name: soft, grace: 10ms}\ninterfaces: [{name: ib0}]", "x.yaml:2: devices[0].grace: 10ms is out of range (100ms to 1h0m0s)"},
		{"long wait", "devices:\n  - {name: soft, give_up_after: 10000h}\ninterfaces: [{name: ib0}]", "x.yaml:2: devices[0].give_up_after: 10000h0m0s is out of range (1s to 720h0m0s)"},
		{"coordinator", "devices:\n  - {name: soft, coordinator: '@a'}\ninterfaces: [{name: ib0}]", `x.yaml:2: devices[0].coordinator: "@a" is not the absolute path of a directory`},
		{"coordinator with a zero", "devices:\n  - {name: soft, coordinator: \"/a\\0b\"}\ninterfaces: [{name: ib0}]", `x.yaml:2: devices[0].coordinator: "/a\x00b" is not the absolute path of a directory`},
		{"control taken by another spelling", "control: /run/./c\ndevices:\n  - {name: soft, coordinator: /run//c}\ninterfaces: [{name: ib0}]", `x.yaml:3: devices[0].coordinator: "/run//c" is the control socket`},
		{"control taken", "control: /c\ndevices:\n  - {name: soft, coordinator: /c}\ninterfaces: [{name: ib0}]", `x.yaml:3: devices[0].coordinator: "/c" is the control socket`},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := Parse("x.yaml", []byte(c.text))
			if err == nil || !strings.HasPrefix(err.Error(), c.want) {
				t.Errorf("got  %v\nwant %s...", err, c.want)
			}
		})
	}
}

// An alias can stand for any value.
func TestAliases(t *testing.T) {
	const text = `
devices:
  - &d {name: soft, pkeys: &k [&p 0x8001, 0xffff]}
  - {name: &u two, underlay: eth1, pkeys: *k}
interfaces:
  - &i {name: ib0, pkey: *p}
  - {name: *u, device: two}
`
	c, err := Parse("x.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(c.Devices[1].PKeys, []hca.PKey{0x8001, 0xffff}) || c.Interfaces[0].PKey != 0x8001 || c.Interfaces[1].Name != "two" {
		t.Errorf("%+v", c)
	}
}

func TestAllMistakesAtOnce(t *testing.T) {
	_, err := Parse("x.yaml", []byte("devices:\n  - name: soft\n    a: 1\n    b: 2\n"))
	if got := strings.Count(err.Error(), "\n") + 1; got != 2 {
		t.Errorf("%d mistakes reported, want 2: %v", got, err)
	}
}

func TestLoad(t *testing.T) {
	dir := t.TempDir()
	if _, err := Load(filepath.Join(dir, "none")); err == nil {
		t.Error("no error for a missing file")
	}
	path := filepath.Join(dir, "c.yaml")
	if err := os.WriteFile(path, []byte(example), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(path); err != nil {
		t.Error(err)
	}
	if err := os.Truncate(path, maxFile+1); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(path); err == nil {
		t.Error("no error for a file above the limit")
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(example))
	f.Add([]byte("interfaces:\n- &a {name: ib0}\n- *a\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		c, err := Parse("x.yaml", text)
		if err == nil && c.Validate() != nil {
			t.Errorf("accepted, but not valid: %v", c.Validate())
		}
	})
}

// A setting of the other kind of HCA may be given as not set.
func TestZeroOfTheOtherKind(t *testing.T) {
	text := "devices: [{device: mlx5_0, lanes: 0, underlay: '', standard_mtu: false}]\ninterfaces: [{}]"
	if _, err := Parse("x.yaml", []byte(text)); err != nil {
		t.Error(err)
	}
}

// A field that is null keeps its default.
func TestNullIsTheDefault(t *testing.T) {
	c, err := Parse("x.yaml", []byte("devices:\n  - {grace: null, give_up_after: , coordinator: ~, allow_other_device: null}\ninterfaces: [{mtu: ~, pkey: ~, gid_index: ~}]"))
	if err != nil {
		t.Fatal(err)
	}
	if want := NewDevice(); !reflect.DeepEqual(c.Devices[0], want) {
		t.Errorf("got %+v, want %+v", c.Devices[0], want)
	}
	if f := c.Interfaces[0]; f.MTU != 0 || f.GIDIndex != nil || f.PKey != hca.PKeyDefault {
		t.Errorf("got %+v", f)
	}
}

// A text lists some of many mistakes, and says how many more there are.
func TestManyMistakes(t *testing.T) {
	text := "devices: [{name: soft}]\ninterfaces:\n"
	for i := range maxShown + 7 {
		text += fmt.Sprintf("  - {name: ib%d, mtu: 1}\n", i)
	}
	_, err := Parse("x.yaml", []byte(text))
	if lines := strings.Split(fmt.Sprint(err), "\n"); len(lines) != maxShown+1 || lines[maxShown] != "7 more mistakes" {
		t.Errorf("%d lines: %v", len(lines), err)
	}
}
