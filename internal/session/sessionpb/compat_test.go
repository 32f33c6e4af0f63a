package sessionpb

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"
)

// baselineFile lists everything the protocol has promised so far, one element a line.
const baselineFile = "baseline.txt"

// frozen messages never change at all: they are what two builds of any age say to each other.
var frozen = []string{"Hello", "Refusal"}

var update = flag.Bool("update", false, "record additions to the protocol in "+baselineFile)

// TestProtocolOnlyGrows fails when a field, message, enum value or method that was once promised is
// removed, renumbered, renamed or given another type, and when a frozen message changes at all.
func TestProtocolOnlyGrows(t *testing.T) {
	data, err := os.ReadFile(baselineFile)
	if err != nil && !(*update && os.IsNotExist(err)) {
		t.Fatal(err)
	}
	baseline := strings.FieldsFunc(string(data), func(r rune) bool { return r == '\n' })
	current := describe(File_internal_session_sessionpb_session_proto)
	broken, added := compare(baseline, current)
	if len(baseline) == 0 && *update {
		broken = nil
	}
	for _, b := range broken {
		t.Error("breaks builds that speak this protocol: ", b)
	}
	switch {
	case t.Failed() || len(added) == 0:
	case *update:
		if err := os.WriteFile(baselineFile, []byte(strings.Join(current, "\n")+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	default:
		t.Errorf("new elements must be recorded (go test ./internal/session/sessionpb -update):\n%s", strings.Join(added, "\n"))
	}
}

// describe lists the elements of a file, sorted.
func describe(f protoreflect.FileDescriptor) []string {
	var lines []string
	var messages func(protoreflect.MessageDescriptors)
	enums := func(es protoreflect.EnumDescriptors) {
		for i := range es.Len() {
			for j := range es.Get(i).Values().Len() {
				v := es.Get(i).Values().Get(j)
				lines = append(lines, fmt.Sprintf("enum %s: %d %s", local(es.Get(i)), v.Number(), v.Name()))
			}
		}
	}
	messages = func(ms protoreflect.MessageDescriptors) {
		for i := range ms.Len() {
			m := ms.Get(i)
			lines = append(lines, "message "+local(m))
			for j := range m.Fields().Len() {
				fd := m.Fields().Get(j)
				typ := fd.Kind().String()
				if fd.Message() != nil {
					typ = local(fd.Message())
				} else if fd.Enum() != nil {
					typ = local(fd.Enum())
				}
				line := fmt.Sprintf("message %s: %d %s %s %s", local(m), fd.Number(), fd.Cardinality(), typ, fd.Name())
				if o := fd.ContainingOneof(); o != nil {
					line += " oneof " + string(o.Name())
				}
				lines = append(lines, line)
			}
			enums(m.Enums())
			messages(m.Messages())
		}
	}
	lines = append(lines, "package "+string(f.Package()))
	enums(f.Enums())
	messages(f.Messages())
	for i := range f.Services().Len() {
		for j := range f.Services().Get(i).Methods().Len() {
			m := f.Services().Get(i).Methods().Get(j)
			lines = append(lines, fmt.Sprintf("service %s: %s(%s stream=%v) returns (%s stream=%v)", m.Parent().Name(), m.Name(),
				local(m.Input()), m.IsStreamingClient(), local(m.Output()), m.IsStreamingServer()))
		}
	}
	slices.Sort(lines)
	return lines
}

// local is a name without the package.
func local(d protoreflect.Descriptor) string {
	return strings.TrimPrefix(string(d.FullName()), string(d.ParentFile().Package())+".")
}

// compare reports what of the baseline is gone or frozen and changed, and what is new.
func compare(baseline, current []string) (broken, added []string) {
	for _, line := range baseline {
		if !slices.Contains(current, line) {
			broken = append(broken, "gone: "+line)
		}
	}
	for _, line := range current {
		if slices.Contains(baseline, line) {
			continue
		}
		added = append(added, line)
		for _, name := range frozen {
			if strings.HasPrefix(line, "message "+name+":") {
				broken = append(broken, "frozen: "+line)
			}
		}
	}
	return broken, added
}

func TestCompareCatchesBreakingChanges(t *testing.T) {
	baseline := describe(File_internal_session_sessionpb_session_proto)
	message := func(f *descriptorpb.FileDescriptorProto, name string) *descriptorpb.DescriptorProto {
		for _, m := range f.MessageType {
			if m.GetName() == name {
				return m
			}
		}
		t.Fatalf("no message %s", name)
		return nil
	}
	newField := func(m *descriptorpb.DescriptorProto) {
		m.Field = append(m.Field, &descriptorpb.FieldDescriptorProto{
			Name: proto.String("news"), Number: proto.Int32(100),
			Label: descriptorpb.FieldDescriptorProto_LABEL_OPTIONAL.Enum(), Type: descriptorpb.FieldDescriptorProto_TYPE_BYTES.Enum(),
		})
	}
	for _, test := range []struct {
		name   string
		change func(f *descriptorpb.FileDescriptorProto)
		broken bool
	}{
		{"nothing", func(*descriptorpb.FileDescriptorProto) {}, false},
		{"field added", func(f *descriptorpb.FileDescriptorProto) { newField(message(f, "Put")) }, false},
		{"field added to Hello", func(f *descriptorpb.FileDescriptorProto) { newField(message(f, "Hello")) }, true},
		{"field removed", func(f *descriptorpb.FileDescriptorProto) { m := message(f, "Put"); m.Field = m.Field[:3] }, true},
		{"field renumbered", func(f *descriptorpb.FileDescriptorProto) { message(f, "Put").Field[3].Number = proto.Int32(9) }, true},
		{"field renamed", func(f *descriptorpb.FileDescriptorProto) { message(f, "Put").Field[3].Name = proto.String("piece") }, true},
		{"field retyped", func(f *descriptorpb.FileDescriptorProto) {
			message(f, "Put").Field[0].Type = descriptorpb.FieldDescriptorProto_TYPE_SINT32.Enum()
		}, true},
		{"field repeated", func(f *descriptorpb.FileDescriptorProto) {
			message(f, "Put").Field[0].Label = descriptorpb.FieldDescriptorProto_LABEL_REPEATED.Enum()
		}, true},
		{"message removed", func(f *descriptorpb.FileDescriptorProto) {
			f.MessageType = slices.DeleteFunc(f.MessageType, func(m *descriptorpb.DescriptorProto) bool { return m.GetName() == "RankPut" })
			f.Service = f.Service[:1]
		}, true},
		{"enum value renumbered", func(f *descriptorpb.FileDescriptorProto) {
			message(f, "Cause").EnumType[0].Value[8].Number = proto.Int32(20)
		}, true},
		{"method no longer streams", func(f *descriptorpb.FileDescriptorProto) {
			f.Service[0].Method[0].ServerStreaming = proto.Bool(false)
		}, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			file := protodesc.ToFileDescriptorProto(File_internal_session_sessionpb_session_proto)
			test.change(file)
			changed, err := protodesc.NewFile(file, nil)
			if err != nil {
				t.Fatal(err)
			}
			if broken, _ := compare(baseline, describe(changed)); (len(broken) > 0) != test.broken {
				t.Errorf("broken = %q, want broken: %v", broken, test.broken)
			}
		})
	}
}
