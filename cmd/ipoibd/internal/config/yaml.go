package config

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
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

// Load reads and checks a YAML file. It returns [Mistakes] if the file can be read as
// YAML but is wrong.
func Load(path string) (*Config, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read configuration: %w", err)
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err == nil && len(text) > maxFile {
		err = fmt.Errorf("%s has more than %d bytes", path, maxFile)
	}
	if err != nil {
		return nil, fmt.Errorf("read configuration: %w", err)
	}
	return Parse(path, text)
}

// Parse reads and checks a configuration's text. Errors call it by the given name.
func Parse(name string, text []byte) (*Config, error) {
	root, err := document(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	d, c := decoder{lines: map[string]int{}}, Config{Control: DefaultControl}
	d.mapping("", root, reflect.ValueOf(&c).Elem())
	for i := range c.Devices {
		c.Devices[i].Name = cmp.Or(c.Devices[i].Name, c.Devices[i].HCA)
	}
	only := DefaultDevice
	if len(c.Devices) == 1 {
		only = c.Devices[0].Name
	}
	for i := range c.Interfaces {
		c.Interfaces[i].Device = cmp.Or(c.Interfaces[i].Device, only)
	}
	if len(d.mistakes) == 0 {
		d.mistakes = c.mistakes()
	}
	if len(d.mistakes) == 0 {
		return &c, nil
	}
	for _, m := range d.mistakes {
		m.File, m.Line = name, d.lineOf(m.Field)
	}
	slices.SortStableFunc(d.mistakes, func(a, b *Mistake) int { return cmp.Compare(a.Line, b.Line) })
	return &c, d.mistakes
}

// document returns the root of the only document in a text.
func document(text []byte) (*yaml.Node, error) {
	docs := yaml.NewDecoder(bytes.NewReader(text))
	var doc, more yaml.Node
	if err := docs.Decode(&doc); errors.Is(err, io.EOF) || err == nil && len(doc.Content) == 0 {
		return nil, errors.New("the file is empty")
	} else if err != nil {
		return nil, err
	}
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

// decoder decodes nodes into variables. It collects mistakes, and the line of each field.
// (The decoder of the YAML package reports neither the field of a mistake nor the known
// fields.)
type decoder struct {
	lines    map[string]int
	mistakes Mistakes
}

// lineOf is the line of a field, or of the innermost one around it that is in the file.
func (d *decoder) lineOf(field string) int {
	for ; field != ""; field = field[:max(strings.LastIndexAny(field, ".["), 0)] {
		if l, ok := d.lines[field]; ok {
			return l
		}
	}
	return 1
}

// mapping decodes n into the struct into, by the tags of its fields.
func (d *decoder) mapping(at string, n *yaml.Node, into reflect.Value) {
	d.lines[at] = n.Line
	if n.Kind != yaml.MappingNode {
		d.mistakes.add(at, "must be a mapping of fields")
		return
	}
	known, names := map[string]reflect.Value{}, []string(nil)
	for _, f := range reflect.VisibleFields(into.Type()) {
		if tag := f.Tag.Get("yaml"); tag != "" {
			known[tag], names = into.FieldByIndex(f.Index), append(names, tag)
		}
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], target(n.Content[i+1])
		field := strings.TrimPrefix(at+"."+key.Value, ".")
		v, ok := known[key.Value]
		_, twice := d.lines[field]
		if !twice {
			d.lines[field] = key.Line
		}
		switch near := nearest(key.Value, names); {
		case !ok && near != "":
			d.mistakes.add(field, "unknown field; did you mean %s?", near)
		case !ok:
			d.mistakes.add(field, "unknown field; known are %s", strings.Join(names, ", "))
		case twice:
			d.mistakes.add(field, "is set twice, again on line %d", key.Line)
		default:
			d.value(field, value, v)
		}
	}
}

// wanted describes the values of a type; those of all others are strings.
var wanted = map[reflect.Type]string{
	reflect.TypeFor[time.Duration](): "a duration, such as 30s or 10m",
	reflect.TypeFor[int]():           "a whole number",
	reflect.TypeFor[*int]():          "a whole number",
	reflect.TypeFor[uint8]():         "a whole number from 0 to 255",
	reflect.TypeFor[bool]():          "true or false",
	reflect.TypeFor[[]string]():      "a list of strings",
}

// value decodes n into a variable. Null leaves the variable's default.
func (d *decoder) value(at string, n *yaml.Node, into reflect.Value) {
	switch key, ok := into.Addr().Interface().(*hca.PKey); {
	case n.ShortTag() == "!!null":
	case ok:
		var err error
		if *key, err = ParsePKey(n.Value); err != nil {
			d.mistakes.add(at, "%v", err)
		}
	case into.Kind() == reflect.Struct:
		d.mapping(at, n, into)
	case into.Kind() == reflect.Slice && into.Type().Elem().Kind() != reflect.String:
		if n.Kind != yaml.SequenceNode {
			d.mistakes.add(at, "must be a list")
			return
		}
		into.Set(reflect.MakeSlice(into.Type(), len(n.Content), len(n.Content)))
		for i, e := range n.Content {
			switch element := into.Index(i).Addr().Interface().(type) {
			case *Device:
				*element = NewDevice()
				element.Name = "" // follows from its HCA
			case *Interface:
				*element = NewInterface()
				element.Device = "" // the only one
			}
			d.value(fmt.Sprintf("%s[%d]", at, i), target(e), into.Index(i))
		}
	case n.Load(into.Addr().Interface()) != nil:
		d.mistakes.add(at, "must be %s", cmp.Or(wanted[into.Type()], "a string"))
	}
}

// nearest returns the name that a word was probably meant to be: that with the fewest
// letters to insert, delete or replace (at most 2, and fewer than the word has), or "".
func nearest(word string, names []string) (near string) {
	best := min(3, len(word))
	for _, name := range names {
		row := make([]int, len(name)+1) // row[j] is the distance from word[:i] to name[:j]
		for j := range row {
			row[j] = j
		}
		for i := range len(word) {
			diagonal := row[0]
			row[0] = i + 1
			for j := range len(name) {
				replaced := diagonal
				if word[i] != name[j] {
					replaced++
				}
				diagonal, row[j+1] = row[j+1], min(replaced, row[j]+1, row[j+1]+1)
			}
		}
		if row[len(name)] < best {
			best, near = row[len(name)], name
		}
	}
	return near
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
