package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v4"

	"ipoibd/hca"
)

// maxFile bounds a configuration file: thousands of interfaces fit.
const maxFile = 1 << 20

// Load reads and checks a YAML file.
func Load(path string) (*Config, error) {
	text, err := read(path)
	if err != nil {
		return nil, fmt.Errorf("read configuration: %w", err)
	}
	return Parse(path, text)
}

func read(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err == nil && len(text) > maxFile {
		err = fmt.Errorf("%s has more than %d bytes", path, maxFile)
	}
	return text, err
}

// Parse reads and checks a configuration's text; name stands for it in errors.
func Parse(name string, text []byte) (*Config, error) {
	root, err := document(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	d := decoder{lines: map[string]int{}}
	c := Config{Control: DefaultControl}
	decodeMap(&d, "", root, &c, configFields)
	c.complete()
	if len(d.problems) == 0 {
		d.problems = c.problems()
	}
	return &c, d.err(name)
}

// document returns the root of the one document that a text has.
func document(text []byte) (*yaml.Node, error) {
	docs := yaml.NewDecoder(bytes.NewReader(text))
	var doc yaml.Node
	if err := docs.Decode(&doc); errors.Is(err, io.EOF) || err == nil && len(doc.Content) == 0 {
		return nil, errors.New("the file is empty")
	} else if err != nil {
		return nil, err
	}
	var more yaml.Node
	if err := docs.Decode(&more); err == nil {
		return nil, fmt.Errorf("a second document begins on line %d; put everything into one", more.Line)
	} else if !errors.Is(err, io.EOF) {
		return nil, err
	}
	return target(doc.Content[0]), nil
}

// target is the node that an alias stands for.
func target(n *yaml.Node) *yaml.Node {
	if n.Kind == yaml.AliasNode {
		return n.Alias
	}
	return n
}

// decoder collects mistakes and the line of each field seen.
type decoder struct {
	lines    map[string]int
	problems []problem
}

func (d *decoder) err(file string) error {
	var errs []error
	for _, p := range d.problems {
		where := fmt.Sprintf("%s:%d", file, d.lineOf(p.field))
		if p.field != "" {
			where += ": " + p.field
		}
		errs = append(errs, fmt.Errorf("%s: %s", where, p.text))
	}
	return errors.Join(errs...)
}

// lineOf is the line of a field, or of the nearest thing around it.
func (d *decoder) lineOf(field string) int {
	for ; field != ""; field = field[:max(strings.LastIndexAny(field, ".["), 0)] {
		if l, ok := d.lines[field]; ok {
			return l
		}
	}
	return 1
}

func (d *decoder) fail(field, format string, args ...any) {
	d.problems = append(d.problems, problem{field, fmt.Sprintf(format, args...)})
}

// fields maps a key to what stores its value; the error is the text of the
// mistake.
type fields[T any] map[string]func(d *decoder, at string, n *yaml.Node, into *T) error

var configFields = fields[Config]{
	"control":    func(_ *decoder, _ string, n *yaml.Node, c *Config) error { return load(n, &c.Control) },
	"devices":    decodeDevices,
	"interfaces": decodeInterfaces,
}

var deviceFields = fields[Device]{
	"name":             func(_ *decoder, _ string, n *yaml.Node, v *Device) error { return load(n, &v.Name) },
	"device":           func(_ *decoder, _ string, n *yaml.Node, v *Device) error { return load(n, &v.HCA) },
	"reset":            func(_ *decoder, _ string, n *yaml.Node, v *Device) error { return load(n, (*string)(&v.Reset)) },
	"underlay":         func(_ *decoder, _ string, n *yaml.Node, v *Device) error { return load(n, &v.Underlay) },
	"pkeys":            decodePKeys,
	"standard_mtu":     func(_ *decoder, _ string, n *yaml.Node, v *Device) error { return load(n, &v.StandardMTU) },
	"peers":            func(_ *decoder, _ string, n *yaml.Node, v *Device) error { return load(n, &v.Peers) },
	"known_peers_only": func(_ *decoder, _ string, n *yaml.Node, v *Device) error { return load(n, &v.KnownPeersOnly) },
	"coordinator":      func(_ *decoder, _ string, n *yaml.Node, v *Device) error { return load(n, &v.Coordinator) },
	"grace":            func(_ *decoder, _ string, n *yaml.Node, v *Device) error { return loadDuration(n, &v.Grace) },
	"give_up_after":    func(_ *decoder, _ string, n *yaml.Node, v *Device) error { return loadDuration(n, &v.GiveUpAfter) },
	"allow_other_device": func(_ *decoder, _ string, n *yaml.Node, v *Device) error {
		return load(n, &v.AllowOtherDevice)
	},
}

var interfaceFields = fields[Interface]{
	"name":   func(_ *decoder, _ string, n *yaml.Node, v *Interface) error { return load(n, &v.Name) },
	"device": func(_ *decoder, _ string, n *yaml.Node, v *Interface) error { return load(n, &v.Device) },
	"port":   func(_ *decoder, _ string, n *yaml.Node, v *Interface) error { return load(n, &v.Port) },
	"pkey": func(_ *decoder, _ string, n *yaml.Node, v *Interface) (err error) {
		v.PKey, err = ParsePKey(n.Value)
		return err
	},
	"gid_index": func(_ *decoder, _ string, n *yaml.Node, v *Interface) error { return load(n, &v.GIDIndex) },
	"gid":       func(_ *decoder, _ string, n *yaml.Node, v *Interface) error { return load(n, &v.GID) },
	"mtu":       func(_ *decoder, _ string, n *yaml.Node, v *Interface) error { return load(n, &v.MTU) },
	"send_wrs":  func(_ *decoder, _ string, n *yaml.Node, v *Interface) error { return load(n, &v.SendWRs) },
	"recv_wrs":  func(_ *decoder, _ string, n *yaml.Node, v *Interface) error { return load(n, &v.RecvWRs) },
}

func decodeDevices(d *decoder, at string, n *yaml.Node, c *Config) error {
	unnamed := NewDevice()
	unnamed.Name = ""
	return decodeList(d, at, n, &c.Devices, func() Device { return unnamed }, deviceFields)
}

func decodeInterfaces(d *decoder, at string, n *yaml.Node, c *Config) error {
	unplaced := NewInterface()
	unplaced.Device = ""
	return decodeList(d, at, n, &c.Interfaces, func() Interface { return unplaced }, interfaceFields)
}

func decodePKeys(_ *decoder, _ string, n *yaml.Node, v *Device) error {
	if n.Kind != yaml.SequenceNode {
		return errors.New("must be a list")
	}
	v.PKeys = []hca.PKey{}
	for _, e := range n.Content {
		k, err := ParsePKey(target(e).Value)
		if err != nil {
			return err
		}
		v.PKeys = append(v.PKeys, k)
	}
	return nil
}

func decodeList[T any](d *decoder, at string, n *yaml.Node, into *[]T, fresh func() T, fs fields[T]) error {
	if n.Kind != yaml.SequenceNode {
		return errors.New("must be a list")
	}
	for i, e := range n.Content {
		v := fresh()
		decodeMap(d, fmt.Sprintf("%s[%d]", at, i), target(e), &v, fs)
		*into = append(*into, v)
	}
	return nil
}

func decodeMap[T any](d *decoder, at string, n *yaml.Node, into *T, fs fields[T]) {
	d.lines[at] = n.Line
	if n.Kind != yaml.MappingNode {
		d.fail(at, "must be a mapping of fields")
		return
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], target(n.Content[i+1])
		field := strings.TrimPrefix(at+"."+key.Value, ".")
		set, known := fs[key.Value]
		switch _, twice := d.lines[field]; {
		case !known:
			d.lines[field] = key.Line
			d.fail(field, "unknown field; known are %s", names(fs))
		case twice:
			d.fail(field, "is set twice, again on line %d", key.Line)
		default:
			d.lines[field] = key.Line
			if err := set(d, field, value, into); err != nil {
				d.fail(field, "%s", err)
			}
		}
	}
}

// load reads a value of one of the types below; nothing stands for the default.
func load[T string | int | *int | uint8 | bool | []string](n *yaml.Node, into *T) error {
	if n.Load(into) == nil {
		return nil
	}
	switch any(into).(type) {
	case *int, **int:
		return errors.New("must be a whole number")
	case *uint8:
		return errors.New("must be a whole number from 0 to 255")
	case *bool:
		return errors.New("must be true or false")
	case *[]string:
		return errors.New("must be a list of strings")
	}
	return errors.New("must be a string")
}

// loadDuration reads a text of numbers with units, as load does.
func loadDuration(n *yaml.Node, into *time.Duration) error {
	text := into.String()
	if err := load(n, &text); err != nil {
		return err
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		return fmt.Errorf("%q is not a duration, such as 30s or 10m", text)
	}
	*into = d
	return nil
}

// ParsePKey reads a P_Key, hexadecimal with 0x or decimal; full membership is
// added, since only full members may use a group (RFC 4391, section 4).
func ParsePKey(s string) (hca.PKey, error) {
	v, err := strconv.ParseUint(s, 0, 16)
	if err != nil || v&0x7fff == 0 {
		return 0, fmt.Errorf("%q is not a P_Key (0x0001 to 0x7fff, with or without the top bit)", s)
	}
	return hca.PKey(v) | hca.PKeyMembership, nil
}
