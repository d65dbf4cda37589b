// SPDX-License-Identifier: Apache-2.0
// Answers of RocketMQ's SQL92 filter. Each line of the input is hexadecimal UTF-8. The first has the
// sets of properties (JSON is not needed: 1 separates a name from its value, 2 properties, 3 sets);
// the others have one expression each. Each line of the output is the hexadecimal error, or one
// letter for each set: t (true), f (false), n (null), c (ClassCastException), ! (another exception).

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.filter.FilterFactory;
import org.apache.rocketmq.filter.expression.EvaluationContext;
import org.apache.rocketmq.filter.expression.Expression;

public class SqlAnswers {
    private record Properties(Map<String, Object> keyValues) implements EvaluationContext {
        @Override
        public Object get(String name) {
            return keyValues.get(name);
        }
    }

    public static void main(String[] arguments) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.US_ASCII));
        PrintStream out = System.out;
        List<Properties> sets = new ArrayList<>();
        for (String set : text(in.readLine()).split("\u0003", -1)) {
            Map<String, Object> found = new HashMap<>();
            for (String pair : set.split("\u0002")) {
                int at = pair.indexOf('\u0001');
                if (at > 0) {
                    found.put(pair.substring(0, at), pair.substring(at + 1));
                }
            }
            sets.add(new Properties(found));
        }
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            out.println(answer(text(line), sets));
        }
    }

    private static String answer(String sql, List<Properties> sets) {
        Expression expression;
        try {
            expression = FilterFactory.INSTANCE.get("SQL92").compile(sql);
        } catch (Throwable refusal) {
            String said = String.valueOf(refusal.getMessage());
            return "E" + HexFormat.of().formatHex(said.getBytes(StandardCharsets.UTF_8));
        }
        StringBuilder results = new StringBuilder();
        for (Properties set : sets) {
            results.append(result(expression, set));
        }
        return results.toString();
    }

    private static char result(Expression expression, Properties set) {
        try {
            Object value = expression.evaluate(set);
            return value == null ? 'n' : Boolean.TRUE.equals(value) ? 't' : 'f';
        } catch (ClassCastException error) {
            return 'c';
        } catch (Throwable error) {
            return '!';
        }
    }

    private static String text(String line) {
        return new String(HexFormat.of().parseHex(line), StandardCharsets.UTF_8);
    }
}
