package config

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"go.yaml.in/yaml/v4"
)

var errNoJSON = errors.New("the interface is not a JSON object")

// Addition says how an interface was added at run time. All other interfaces come from a file or from flags.
type Addition struct {
	Request  string `json:"request"`
	Existing bool   `json:"existing"` // the interface must exist, left by an earlier daemon
}

// Runtime reports whether the interface of a name was added at run time.
func (c *Config) Runtime(name string) bool { return c.Added[name].Request != "" }

// handed is an interface in the state that a daemon hands over.
type handed struct {
	Interface
	Addition
}

// UnmarshalJSON decodes what another version has handed over, over the defaults.
func (h *handed) UnmarshalJSON(text []byte) error {
	h.Interface = NewInterface()
	return errors.Join(json.Unmarshal(text, &h.Interface), json.Unmarshal(text, &h.Addition))
}

// plain is a Config that encodes itself field by field.
type plain Config

// capsule is a Config in the state that a daemon hands over: each interface contains its Addition.
type capsule struct {
	plain
	Interfaces []handed  `json:"interfaces"`
	Added      *struct{} `json:"added,omitempty"` // hides that of plain
}

// MarshalJSON encodes what a daemon hands over.
func (c Config) MarshalJSON() ([]byte, error) {
	h := capsule{plain: plain(c)}
	for _, f := range c.Interfaces {
		h.Interfaces = append(h.Interfaces, handed{f, c.Added[f.Name]})
	}
	return json.Marshal(h)
}

// UnmarshalJSON decodes what another version has handed over.
func (c *Config) UnmarshalJSON(text []byte) error {
	h := capsule{plain: plain(*c)}
	err := json.Unmarshal(text, &h)
	*c = Config(h.plain)
	c.Interfaces, c.Added = nil, nil
	for _, f := range h.Interfaces {
		c.Interfaces = append(c.Interfaces, f.Interface)
		if f.Request == "" {
			continue
		}
		if c.Added == nil {
			c.Added = map[string]Addition{}
		}
		c.Added[f.Name] = f.Addition
	}
	return err
}

// WithRuntime returns a configuration with one more interface, from a request: a JSON object with
// the fields that an interface has in a file. It replaces an earlier one of that name that was added
// at run time as well. Errors: [Mistakes], and that the text is not JSON.
func (c *Config) WithRuntime(text []byte) (*Config, error) {
	var root yaml.Node
	if !json.Valid(text) { // YAML would accept more
		return nil, errNoJSON
	}
	if err := yaml.Load(text, &root); err != nil {
		return nil, fmt.Errorf("%w: %w", errNoJSON, err)
	}
	f, d := NewInterface(), decoder{lines: map[string]int{}}
	f.Name, f.Device = "", ""
	mapping(&d, "", root.Content[0], InterfaceFields, &f)
	if f.Device == "" && len(c.Devices) == 1 {
		f.Device = c.Devices[0].Name
	}
	if len(d.mistakes) > 0 {
		return nil, d.mistakes
	}
	next, i := c.copied(), c.index(f.Name)
	switch {
	case i < 0:
		i = len(next.Interfaces)
		next.Interfaces = append(next.Interfaces, f)
	case c.Runtime(f.Name):
		next.Interfaces[i] = f
	default:
		return nil, Mistakes{{
			Field: "name",
			Text:  fmt.Sprintf("the configuration has an interface %s already; choose another name", f.Name),
		}}
	}
	next.Added[f.Name] = Addition{Request: string(text)}
	ms := next.mistakes()
	for _, m := range ms {
		m.Field = strings.TrimPrefix(m.Field, fmt.Sprintf("interfaces[%d].", i))
	}
	if len(ms) > 0 {
		return nil, ms
	}
	return next, nil
}

// WithRuntimeOf returns a configuration with the interfaces that were added to another one at run
// time, except those that it has itself. It returns [Mistakes] if they do not fit.
func (c *Config) WithRuntimeOf(other *Config) (*Config, error) {
	next := c.copied()
	for _, f := range other.Interfaces {
		if other.Runtime(f.Name) && c.index(f.Name) < 0 {
			next.Interfaces = append(next.Interfaces, f)
			next.Added[f.Name] = other.Added[f.Name]
		}
	}
	ms := next.mistakes()
	for _, m := range ms {
		for i, f := range next.Interfaces[len(c.Interfaces):] {
			if field, ok := strings.CutPrefix(m.Field, fmt.Sprintf("interfaces[%d]", len(c.Interfaces)+i)); ok {
				m.Field = fmt.Sprintf("interface %s (added at run time)%s", f.Name, field)
			}
		}
	}
	if len(ms) > 0 {
		return nil, ms
	}
	return next, nil
}

// Without returns a configuration without an interface that was added at run time.
func (c *Config) Without(name string) (*Config, error) {
	i := c.index(name)
	if i < 0 || !c.Runtime(name) {
		return nil, fmt.Errorf("interface %s was not added at run time", name)
	}
	next := c.copied()
	next.Interfaces = slices.Delete(next.Interfaces, i, i+1)
	delete(next.Added, name)
	return next, nil
}

// index returns the index of the interface of a name, or -1.
func (c *Config) index(name string) int {
	return slices.IndexFunc(c.Interfaces, func(f Interface) bool { return f.Name == name })
}

// copied returns a copy of c with a list of interfaces of its own.
func (c *Config) copied() *Config {
	next := *c
	next.Interfaces, next.Added = slices.Clone(c.Interfaces), map[string]Addition{}
	maps.Copy(next.Added, c.Added)
	return &next
}
