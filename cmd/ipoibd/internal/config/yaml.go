package config

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v4"

	"ipoibd/hca"
)

// maxFile bounds a configuration file: thousands of interfaces fit.
const maxFile = 1 << 20

// Load reads and checks a YAML file. It returns [Mistakes] if the file can be read but is
// wrong.
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
	var docs []yaml.Node
	err := yaml.Load(text, &docs, yaml.WithAllDocuments())
	bad, ok := errors.AsType[*yaml.LoadError](err)
	switch {
	case ok:
		return nil, Mistakes{syntaxMistake(name, text, bad)}
	case err != nil:
		return nil, fmt.Errorf("%s: %w", name, err)
	case len(docs) == 0 || len(docs[0].Content) == 0:
		return nil, fmt.Errorf("%s: the file is empty", name)
	case len(docs) > 1:
		return nil, fmt.Errorf("%s: a second document begins on line %d; put everything into one", name, docs[1].Line)
	}
	d, c := decoder{lines: map[string]int{}}, New()
	mapping(&d, "", target(docs[0].Content[0]), Fields, &c)
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

var tabIndent = regexp.MustCompile(`^[ -]*\t`)

// syntaxMistake describes text that is not YAML.
func syntaxMistake(name string, text []byte, bad *yaml.LoadError) *Mistake {
	m := &Mistake{File: name, Line: bad.Mark.Line, Text: bad.Message}
	lines := strings.Split(string(text), "\n")
	if m.Line >= 1 && m.Line <= len(lines) && tabIndent.MatchString(lines[m.Line-1]) {
		m.Text = "the line is indented by a tab; use spaces"
	}
	return m
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

// mapping decodes n into a struct that has the fields of a table.
func mapping[T any](d *decoder, at string, n *yaml.Node, table Table[T], into *T) {
	d.lines[at] = n.Line
	if n.Kind != yaml.MappingNode {
		d.mistakes.add(at, "must be a mapping of fields")
		return
	}
	var names []string
	for _, f := range table {
		names = append(names, f.Name)
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], target(n.Content[i+1])
		field := strings.TrimPrefix(at+"."+key.Value, ".")
		known := slices.Index(names, key.Value)
		_, twice := d.lines[field]
		if !twice {
			d.lines[field] = key.Line
		}
		switch near := nearest(key.Value, names); {
		case known < 0 && near != "":
			d.mistakes.add(field, "unknown field; did you mean %s?", near)
		case known < 0:
			d.mistakes.add(field, "unknown field; known are %s", strings.Join(names, ", "))
		case twice:
			d.mistakes.add(field, "is set twice, again on line %d", key.Line)
		default:
			d.value(field, value, table[known].Of(into))
		}
	}
}

// list decodes n into a list. An element is fresh before it is decoded.
func list[T any](d *decoder, at string, n *yaml.Node, into *[]T, fresh T, wanted string) {
	if n.Kind != yaml.SequenceNode {
		d.mistakes.add(at, "must be %s", wanted)
		return
	}
	*into = make([]T, len(n.Content))
	for i, e := range n.Content {
		field := fmt.Sprintf("%s[%d]", at, i)
		d.lines[field], (*into)[i] = e.Line, fresh
		if target(e).ShortTag() == "!!null" {
			d.mistakes.add(field, "is empty; remove it, or write {} for the defaults")
		}
		d.value(field, target(e), &(*into)[i])
	}
}

// value decodes n into the variable that into points to. Null leaves the variable's default.
func (d *decoder) value(at string, n *yaml.Node, into any) {
	if n.ShortTag() == "!!null" {
		return
	}
	wanted := "a string"
	switch v := into.(type) {
	case *[]Device:
		fresh := NewDevice()
		fresh.Name = "" // follows from its HCA
		list(d, at, n, v, fresh, "a list")
		return
	case *Device:
		mapping(d, at, n, DeviceFields, v)
		return
	case *[]Interface:
		fresh := NewInterface()
		fresh.Device = "" // the only one
		list(d, at, n, v, fresh, "a list")
		return
	case *Interface:
		mapping(d, at, n, InterfaceFields, v)
		return
	case *[]hca.PKey:
		list(d, at, n, v, 0, "a list")
		return
	case *hca.PKey:
		d.value(at, n, (*PKeyValue)(v))
		return
	case *PKeyValue:
		if err := v.Set(n.Value); err != nil {
			d.mistakes.add(at, "%v", err)
		}
		return
	case *[]string:
		list(d, at, n, v, "", "a list of strings")
		return
	case *time.Duration:
		wanted = "a duration, such as 30s or 10m"
	case *int, **int:
		wanted = "a whole number"
	case *uint8:
		wanted = "a whole number from 0 to 255"
	case *bool:
		wanted = "true or false"
	}
	if n.Load(into) != nil {
		d.mistakes.add(at, "must be %s", wanted)
	}
}

// nearest returns the name that a word was probably meant to be: the first that differs by the
// fewest letters (at most 2, and fewer than the word has), or "".
func nearest(word string, names []string) string {
	for n := range min(3, len(word)) {
		if i := slices.IndexFunc(names, func(name string) bool { return differ(word, name, n) }); i >= 0 {
			return names[i]
		}
	}
	return ""
}

// differ reports whether a becomes b if at most n letters are inserted, deleted or replaced.
func differ(a, b string, n int) bool {
	switch {
	case a == "" || b == "":
		return len(a)+len(b) <= n
	case a[0] == b[0] && differ(a[1:], b[1:], n):
		return true
	}
	return n > 0 && (differ(a[1:], b, n-1) || differ(a, b[1:], n-1) || differ(a[1:], b[1:], n-1))
}

// PKeyValue is a P_Key as the value of a flag (pflag.Value).
type PKeyValue hca.PKey

func (v *PKeyValue) String() string { return fmt.Sprintf("0x%04x", uint16(*v)) }

// Type names the kind of the value in the help.
func (v *PKeyValue) Type() string { return "P_Key" }

// Set reads a value, hexadecimal with 0x or decimal; full membership is added, since only full members may use
// a group (RFC 4391, section 4). It keeps the previous one if the text is wrong.
func (v *PKeyValue) Set(s string) error {
	key, err := strconv.ParseUint(s, 0, 16)
	if err != nil || key&0x7fff == 0 {
		return fmt.Errorf("%q is not a P_Key (0x0001 to 0x7fff, with or without the top bit)", s)
	}
	*v = PKeyValue(hca.PKey(key) | hca.PKeyMembership)
	return nil
}
