package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"reflect"
	"slices"
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
	if err := d.value("", root, &c); err != nil {
		d.fail("", "%s", err)
	}
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

// mapping decodes n into the struct into, by the tags of its fields.
func (d *decoder) mapping(at string, n *yaml.Node, into reflect.Value) {
	d.lines[at] = n.Line
	if n.Kind != yaml.MappingNode {
		d.fail(at, "must be a mapping of fields")
		return
	}
	known := map[string]reflect.Value{}
	for _, f := range reflect.VisibleFields(into.Type()) {
		if tag := f.Tag.Get("yaml"); tag != "" {
			known[tag] = into.FieldByIndex(f.Index)
		}
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], target(n.Content[i+1])
		field := strings.TrimPrefix(at+"."+key.Value, ".")
		v, ok := known[key.Value]
		switch _, twice := d.lines[field]; {
		case !ok:
			d.lines[field] = key.Line
			d.fail(field, "unknown field; known are %s", strings.Join(slices.Sorted(maps.Keys(known)), ", "))
		case twice:
			d.fail(field, "is set twice, again on line %d", key.Line)
		default:
			d.lines[field] = key.Line
			if err := d.value(field, value, v.Addr().Interface()); err != nil {
				d.fail(field, "%s", err)
			}
		}
	}
}

// value decodes n into the variable that into points to; an error is the text of
// the mistake. Nothing (null) stands for the default.
func (d *decoder) value(at string, n *yaml.Node, into any) error {
	switch into := into.(type) {
	case *Config, *Device, *Interface:
		d.mapping(at, n, reflect.ValueOf(into).Elem())
		return nil
	case *[]Device:
		unnamed := NewDevice()
		unnamed.Name = ""
		return list(d, at, n, into, unnamed)
	case *[]Interface:
		unplaced := NewInterface()
		unplaced.Device = ""
		return list(d, at, n, into, unplaced)
	case *[]hca.PKey:
		return list(d, at, n, into, 0)
	case *hca.PKey:
		k, err := ParsePKey(n.Value)
		*into = k
		return err
	case *time.Duration:
		text := into.String()
		if err := d.value(at, n, &text); err != nil {
			return err
		}
		v, err := time.ParseDuration(text)
		if err != nil {
			return fmt.Errorf("%q is not a duration, such as 30s or 10m", text)
		}
		*into = v
		return nil
	}
	if n.Load(into) == nil {
		return nil
	}
	switch into.(type) {
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

// list decodes the elements of n, each of which starts as fresh.
func list[T any](d *decoder, at string, n *yaml.Node, into *[]T, fresh T) error {
	if n.Kind != yaml.SequenceNode {
		return errors.New("must be a list")
	}
	*into = make([]T, len(n.Content))
	for i, e := range n.Content {
		(*into)[i] = fresh
		if err := d.value(fmt.Sprintf("%s[%d]", at, i), target(e), &(*into)[i]); err != nil {
			return err
		}
	}
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
