import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/**
 * JSON as plain Java values: objects are {@code Map<String, Object>}, arrays {@code List<Object>}, numbers
 * {@code Long} or {@code Double}. It supports only what the client needs, so that the client needs only the JDK; a
 * program that has a JSON library already can use that instead.
 */
final class Json {
    /** Deeper nesting than anything that Kubernetes sends. */
    private static final int DEEPEST = 200;

    private final String text;
    private int at;

    private Json(String text) {
        this.text = text;
    }

    /** Reads one value. Throws {@link IllegalArgumentException} with the place where the text is no JSON. */
    static Object read(String text) {
        Json json = new Json(text);
        Object value = json.value(0);
        json.space();
        if (json.at != text.length()) {
            throw json.wrong("the end");
        }
        return value;
    }

    /** Reads an object. */
    static Map<String, Object> readObject(String text) {
        return object(read(text));
    }

    /** The value as an object; an empty one where it is null or something else. */
    @SuppressWarnings("unchecked")
    static Map<String, Object> object(Object value) {
        return value instanceof Map ? (Map<String, Object>) value : Map.of();
    }

    /** The value as a list; an empty one where it is null or something else. */
    @SuppressWarnings("unchecked")
    static List<Object> list(Object value) {
        return value instanceof List ? (List<Object>) value : List.of();
    }

    /** The value as text; empty where it is null. */
    static String text(Object value) {
        return value == null ? "" : value.toString();
    }

    /** Writes a value. */
    static String write(Object value) {
        StringBuilder out = new StringBuilder();
        write(value, out);
        return out.toString();
    }

    private static void write(Object value, StringBuilder out) {
        if (value instanceof Map<?, ?> map) {
            String before = "{";
            for (Map.Entry<?, ?> entry : map.entrySet()) {
                out.append(before);
                quote(entry.getKey().toString(), out);
                out.append(':');
                write(entry.getValue(), out);
                before = ",";
            }
            out.append(map.isEmpty() ? "{}" : "}");
        } else if (value instanceof List<?> list) {
            String before = "[";
            for (Object element : list) {
                out.append(before);
                write(element, out);
                before = ",";
            }
            out.append(list.isEmpty() ? "[]" : "]");
        } else if (value instanceof String string) {
            quote(string, out);
        } else {
            out.append(value);
        }
    }

    private static void quote(String string, StringBuilder out) {
        out.append('"');
        for (int index = 0; index < string.length(); index++) {
            char one = string.charAt(index);
            if (one == '"' || one == '\\') {
                out.append('\\').append(one);
            } else if (one < ' ') {
                out.append(String.format("\\u%04x", (int) one));
            } else {
                out.append(one);
            }
        }
        out.append('"');
    }

    private Object value(int depth) {
        if (depth > DEEPEST) {
            throw wrong("at most " + DEEPEST + " levels");
        }
        space();
        char first = at < text.length() ? text.charAt(at) : ' ';
        switch (first) {
            case '{':
                return members(depth);
            case '[':
                return elements(depth);
            case '"':
                return string();
            case 't':
                return word("true", true);
            case 'f':
                return word("false", false);
            case 'n':
                return word("null", null);
            default:
                return number();
        }
    }

    private Map<String, Object> members(int depth) {
        Map<String, Object> members = new LinkedHashMap<>();
        at++;
        space();
        while (!taken('}')) {
            if (!members.isEmpty()) {
                take(',');
                space();
            }
            String key = string();
            space();
            take(':');
            members.put(key, value(depth + 1));
            space();
        }
        return members;
    }

    private List<Object> elements(int depth) {
        List<Object> elements = new ArrayList<>();
        at++;
        space();
        while (!taken(']')) {
            if (!elements.isEmpty()) {
                take(',');
            }
            elements.add(value(depth + 1));
            space();
        }
        return elements;
    }

    private String string() {
        take('"');
        StringBuilder string = new StringBuilder();
        while (!taken('"')) {
            char one = next();
            if (one != '\\') {
                string.append(one);
                continue;
            }
            char escaped = next();
            switch (escaped) {
                case 'n' -> string.append('\n');
                case 't' -> string.append('\t');
                case 'r' -> string.append('\r');
                case 'b' -> string.append('\b');
                case 'f' -> string.append('\f');
                case 'u' -> {
                    if (at + 4 > text.length()) {
                        throw wrong("four hexadecimal digits");
                    }
                    string.append((char) Integer.parseInt(text.substring(at, at + 4), 16));
                    at += 4;
                }
                default -> string.append(escaped);
            }
        }
        return string.toString();
    }

    private Object number() {
        int start = at;
        while (at < text.length() && "+-.eE0123456789".indexOf(text.charAt(at)) >= 0) {
            at++;
        }
        String digits = text.substring(start, at);
        try {
            return digits.matches("-?\\d{1,18}") ? (Object) Long.valueOf(digits) : (Object) Double.valueOf(digits);
        } catch (NumberFormatException none) {
            at = start;
            throw wrong("a value");
        }
    }

    private Object word(String word, Object value) {
        if (!text.startsWith(word, at)) {
            throw wrong(word);
        }
        at += word.length();
        return value;
    }

    private char next() {
        if (at >= text.length()) {
            throw wrong("more");
        }
        return text.charAt(at++);
    }

    private boolean taken(char wanted) {
        if (at >= text.length()) {
            throw wrong("'" + wanted + "'");
        }
        boolean there = text.charAt(at) == wanted;
        at += there ? 1 : 0;
        return there;
    }

    private void take(char wanted) {
        if (!taken(wanted)) {
            throw wrong("'" + wanted + "'");
        }
    }

    private void space() {
        while (at < text.length() && Character.isWhitespace(text.charAt(at))) {
            at++;
        }
    }

    private IllegalArgumentException wrong(String wanted) {
        return new IllegalArgumentException("no JSON at character " + at + ": expected " + wanted);
    }
}
