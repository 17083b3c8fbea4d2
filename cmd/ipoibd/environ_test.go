package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"ipoibd/cmd/ipoibd/internal/config"
)

// configureIn parses flags of run in an environment.
func configureIn(environ []string, args ...string) (c *config.Config, unknown []string, err error) {
	f := newRunFlags()
	cmd := runCommand()
	cmd.ResetFlags()
	f.bind(cmd)
	if err := cmd.ParseFlags(args); err != nil {
		return nil, nil, err
	}
	if unknown, err = fromEnvironment(cmd.Flags(), environ); err != nil {
		return nil, nil, err
	}
	c, err = f.configuration(cmd.Flags())
	return c, unknown, err
}

// A flag takes precedence over its variable, the variable over the file, and the file over the
// default.
func TestFlagEnvironmentFileDefault(t *testing.T) {
	file := filepath.Join(t.TempDir(), "c.yaml")
	if err := os.WriteFile(file, []byte(`
devices: [{name: d, underlay: file0, peers: [192.0.2.1], lanes: 2}]
interfaces: [{name: ib3, mtu: 1300, gid: 192.0.2.9, addresses: [10.9.0.1/24], up: true, pkey: 0xffff}]
`), 0o600); err != nil {
		t.Fatal(err)
	}
	environ := []string{
		"IPOIBD_UNDERLAY=env0", "IPOIBD_MTU=1400", "IPOIBD_ADDRESS=10.9.0.2/24,fd09::2/64", "IPOIBD_PEER=192.0.2.3,host.example", "IPOIBD_ROUTE=",
		"IPOIBD_CONFIG=" + file,
	}
	c, unknown, err := configureIn(environ, "--mtu", "1500", "--pkey", "0x7fff", "--gid-index", "2", "--gid", "", "--route", "10.0.0.0/8 via 10.9.0.254")
	if err != nil || len(unknown) > 0 {
		t.Fatal(err, unknown)
	}
	d, f := c.Devices[0], c.Interfaces[0]
	if f.MTU != 1500 || f.PKey != 0xffff || f.GIDIndex == nil || *f.GIDIndex != 2 || !slices.Equal(f.Routes, []string{"10.0.0.0/8 via 10.9.0.254"}) {
		t.Errorf("interface %+v, want what the flags say", f)
	}
	if d.Underlay != "env0" || !slices.Equal(f.Addresses, []string{"10.9.0.2/24", "fd09::2/64"}) || !slices.Equal(d.Peers, []string{"192.0.2.3", "host.example"}) {
		t.Errorf("device %+v, interface %+v, want what the environment says", d, f)
	}
	if d.Name != "d" || d.Lanes != 2 || f.Name != "ib3" || !f.Up || c.Control != config.DefaultControl {
		t.Errorf("%+v, want the rest as in the file", c)
	}
}

// Kubernetes sets variables for a Service called ipoibd, which must not change anything. Other
// unknown names are reported.
func TestUnknownVariables(t *testing.T) {
	c, unknown, err := configureIn([]string{
		"IPOIBD_PORT=tcp://10.0.0.1:80", "IPOIBD_PORT_80_TCP_ADDR=10.0.0.1", "IPOIBD_SERVICE_HOST=10.0.0.1", "IPOIBD_SERVICE_PORT_HTTP=80",
		"IPOIBD_MANAGEMENT_PORT=tcp://10.0.0.1:80", "IPOIBD_ADRESS=10.9.0.1/24", "IPOIBD_HELP=true", "HOME=/", "IPOIBD_UP=true",
	})
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{"IPOIBD_ADRESS", "IPOIBD_HELP"}; !slices.Equal(unknown, want) {
		t.Errorf("unknown %v, want %v", unknown, want)
	}
	if f := c.Interfaces[0]; f.Port != 1 || !f.Up {
		t.Errorf("%+v, want only --up set", c)
	}
}

func TestMistakesInVariables(t *testing.T) {
	for variable, want := range map[string]string{
		"IPOIBD_MTU=big":     `environment variable IPOIBD_MTU: "big" is not a whole number`,
		"IPOIBD_UP=maybe":    `environment variable IPOIBD_UP: "maybe" is not true or false`,
		"IPOIBD_PKEY=zero":   `environment variable IPOIBD_PKEY: "zero" is not a P_Key`,
		"IPOIBD_ADDRESS=ten": `environment variable IPOIBD_ADDRESS: "ten" is not an address with a prefix length`,
		"IPOIBD_LANES=3":     `environment variable IPOIBD_LANES: 3 is not 1, 2, 4 or 8`,
		"IPOIBD_CONFIG=/no":  `environment variable IPOIBD_CONFIG: read configuration: open /no: `,
	} {
		if _, _, err := configureIn([]string{variable}); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "strconv") {
			t.Errorf("%s: %v, want %q", variable, err, want)
		}
	}
}

// A mistake names what has set the value: a flag or a variable, with or without a file. What the
// file sets keeps the name of its field.
func TestMistakesNameTheirOrigin(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	one := write("one.yaml", "devices: [{name: soft, standard_mtu: true}]\ninterfaces: [{name: ib0, gid: 192.0.2.1}]\n")
	two := write("two.yaml", "devices: [{name: soft}]\ninterfaces: [{name: ib0}, {name: ib1}]\n")
	for _, c := range []struct {
		environ []string
		args    []string
		want    string
	}{
		{[]string{"IPOIBD_MTU=1"}, nil, "environment variable IPOIBD_MTU: 1 is out of range (68 to 4092)"},
		{[]string{"IPOIBD_MTU=1"}, []string{"--mtu", "2"}, "--mtu: 2 is out of range (68 to 4092)"},
		{[]string{"IPOIBD_CONFIG=" + one, "IPOIBD_MTU=1"}, nil, one + ", changed by flags or the environment: environment variable IPOIBD_MTU: 1 is out of range (68 to 4092)"},
		{[]string{"IPOIBD_DEVICE=rxe0"}, []string{"--config", one}, one + ", changed by flags or the environment: devices[0].standard_mtu: applies only to"},
		{[]string{"IPOIBD_GID_INDEX=3"}, []string{"--config", one}, one + ", changed by flags or the environment: environment variable IPOIBD_GID_INDEX: cannot be combined with gid"},
		{[]string{"IPOIBD_MTU=1400"}, []string{"--config", two}, "environment variable IPOIBD_MTU: " + two + " configures several"},
		{nil, []string{"--config", two, "--mtu", "1400"}, "--mtu: " + two + " configures several"},
		{nil, []string{"--address", "10.9.0.1/24", "--address", "10.9.0.1/16"}, "--address: 10.9.0.1/16 is listed already, as 10.9.0.1/24; keep one of them"},
	} {
		if _, _, err := configureIn(c.environ, c.args...); err == nil || !strings.HasPrefix(err.Error(), c.want) {
			t.Errorf("%v %v: %v, want %q", c.environ, c.args, err, c.want)
		}
	}
}

// The log's variables are named as well.
func TestMistakesInVariablesOfTheLog(t *testing.T) {
	for variable, want := range map[string]string{
		"IPOIBD_LOG_LEVEL":  `environment variable IPOIBD_LOG_LEVEL: "loud" is not one of debug, info, warn, error`,
		"IPOIBD_LOG_FORMAT": `environment variable IPOIBD_LOG_FORMAT: "loud" is not one of text, json`,
	} {
		t.Run(variable, func(t *testing.T) {
			t.Setenv(variable, "loud")
			root := rootCommand()
			root.SetArgs([]string{"run"})
			if code, err := execute(t.Context(), root); code != exitUsage || err == nil || err.Error() != want {
				t.Errorf("%d, %v, want %q", code, err, want)
			}
		})
	}
}
